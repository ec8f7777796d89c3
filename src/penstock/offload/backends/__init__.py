"""Where burst workers run, and what they do.

    backend    the port: what a backend must offer, and how couriers find it
    messages   requests and answers; code_mark: what tells one flow's code from another's
    worker     what a burst worker does with a request
    local/     burst workers as processes on the driver's machine
    aws/       burst workers as invocations of an AWS Lambda function

A burst worker keeps nothing, so one that fails costs no more than its time: its rows go to the host.
"""
