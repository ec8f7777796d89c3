"""Couriers, inside Spark tasks: they take rows through the steps of a flow, and report to the driver.

courier.py      the function that a Spark task runs
delivery.py     one task attempt: its plan, its input, its calls to the driver
roads.py        ways of a task's rows through a step
channels.py     connections to the hosts of a step
witness.py      counts and times of the rows that pass
"""
