"""Commands about exported tables and the schemas of topics. They need a checkout of Lakelog."""
