"""At most five attempts to log in at once for each name, then one every 12 seconds."""


def may_try(client, name):
    granted, *_ = client.execute_command("RL.GCRA", f"login:{name}", 5, 60)
    return granted == 1
