"""Every job as a callback on the clock: right for any policy."""
