"""Backends, in which burst workers run, and the work of a burst worker.

    backend    the interface of a backend, and how couriers connect to one
    messages   requests and answers
    code_mark  a fingerprint of a flow's code
    worker     runs the steps of a request
    remote     usage and warmth of burst workers that a platform runs
    package    what a platform needs: Penstock, the flow's plan, an entry point, a Dockerfile
    local/     burst workers as processes on the driver's machine
    http/      burst workers in containers behind a URL
    aws/       burst workers as invocations of an AWS Lambda function

A burst worker keeps no state, so a failure only costs time: the courier does the rows itself.
"""
