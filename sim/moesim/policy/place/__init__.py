"""Where experts should live, by what is known of the traffic: pure functions of loads."""
