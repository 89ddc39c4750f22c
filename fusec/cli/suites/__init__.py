"""The benchmark suites: what is measured (declared), by whom, and the files the results go to."""
