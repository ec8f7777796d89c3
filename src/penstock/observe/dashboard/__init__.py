"""The dashboard: a web page that shows a query, running or ended, and steers it.

series.py      a recording as columns for charts: points, marks and moves (pure)
timeline.py    the series of a recording as it grows, and what the page gets of it
app.py         the web application: the page, its data, events as they happen, orders
server.py      serves the application in a thread of this process
page.py        the page with everything inlined, as one HTML file
static/        the page: HTML, CSS, JavaScript modules, and uPlot (MIT licence), which draws the charts
"""
