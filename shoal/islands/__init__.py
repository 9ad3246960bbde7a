"""Islands: one run as several programs that meet, on machines that come and go or have different owners."""
