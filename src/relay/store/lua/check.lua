-- Prove that the server takes writes: a replica, a full memory or a failing disk refuses this.
-- KEYS  1 check

redis.call('SET', KEYS[1], '1', 'PX', 60000)
