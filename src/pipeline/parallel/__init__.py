"""The subject: several processes that train together."""
