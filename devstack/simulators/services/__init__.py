"""What is special to each service: its paths, its bodies, and what it refuses."""

from devstack.simulators.messages import Service
from devstack.simulators.services import cloud, mail, payments, shipping, stock

SERVICES: tuple[Service, ...] = (
    stock.SERVICE,
    payments.SERVICE,
    shipping.SERVICE,
    mail.SERVICE,
    cloud.SERVICE,
)
