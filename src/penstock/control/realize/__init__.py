"""From a decision to what is: where treatments stand, and how long an epoch waits for them."""
