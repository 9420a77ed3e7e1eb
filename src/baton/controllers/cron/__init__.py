"""CronJobs: jobs made on a schedule."""
