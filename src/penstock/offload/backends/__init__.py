"""Backends, in which burst workers run, and the work of a burst worker.

    backend    the interface of a backend, and how couriers connect to one
    messages   requests and answers
    code_mark  a fingerprint of a flow's code
    worker     runs the steps of a request
    local/     burst workers as processes on the driver's machine
    aws/       burst workers as invocations of an AWS Lambda function

A burst worker keeps no state, so a failure only costs time: the courier does the rows itself.
"""
