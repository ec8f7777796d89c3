"""Functions: short-lived workers that compute partial states when hosts have more than they can take.

A courier hands a function rows, and gets back what the owning host merges into its state. So no state
leaves a host, and a function that fails costs no more than its time: the rows go to the host then.

    port      what a place that runs functions must offer
    reach     how a courier gets from a text in its plan to functions
    messages  requests and answers
    work      what a function does with a request
    local     functions as processes on the driver's machine (service, pool, nursery)
    aws       functions on AWS Lambda (lambda_invoker, lambda_handler, package)
    price     what it costs
"""
