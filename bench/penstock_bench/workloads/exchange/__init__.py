"""A stock exchange: a day of limit orders, and the continuous auction that matches them.

trace.py       arrival times of orders by stock: how busy the market and each stock are
orders.py      the orders: account, side, price, quantity
book.py        the order book of one stock: matching by price and time, balances
auction.py     the auction as a keyed processor: books as state
live.py        a part of the day, live on Spark

The load imitates that of StreamSwitch's experiments on the Shanghai Stock Exchange, from its published
figures: 1,156 stocks, 14,854,215 orders in two sessions of two hours, hundreds to thousands per
second, 70,000 to 80,000 in the first second of each session, and a power law over stocks.
"""
