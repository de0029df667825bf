package indextest

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// locksKeys is the number of keys that CheckLocks loads.
const locksKeys = 300

// besideMost is how many of the keys one lock may lock, of an engine that locks leaves.
const besideMost = 32

// lockedBeside returns how many keys are locked.
func lockedBeside(s index.Server, keys keyspace) (n int) {
	for i := range locksKeys {
		if s.Get(keys.key(i), nil).Status == index.Locked {
			n++
		}
	}
	return n
}

// CheckLocks looks up rows that are locked. A lookup ends at the lock at which its
// attempt bounds it, in no more rounds than it takes if the row is not locked, and
// remembers where the row is. Without a bound it READs the row again first.
func CheckLocks(eng Engine, v Variant, seed uint64) error {
	e, err := NewEnv(v, seed, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	s, err := eng.NewServer(e, 4)
	if err != nil {
		return err
	}
	keys, sh := newKeyspace(newRand(seed, "locks"), locksKeys, keysOf(eng, locksKeys)), shape{words: 4}
	for i := range locksKeys {
		csn := e.Arena.NextCSN()
		if err := s.Load(keys.key(i), sh.row(keys.key(i), csn), block.Present(csn)); err != nil {
			return err
		}
	}
	if eng.Tick != nil {
		eng.Tick(s)
	}
	c, err := eng.NewClient(e, s.Root(), 4, e.InOrder)
	if err != nil {
		return err
	}
	sess, err := NewSession(e, c)
	if err != nil {
		return err
	}
	defer sess.Close()
	var attempt index.Attempt
	sess.get.(index.Serving).Serve(&attempt)
	// get returns how a lookup ends that no lost connection has disturbed, and its rounds.
	get := func(key index.Key, locks int) (st index.Status, rounds uint64, err error) {
		for st = index.Failed; (st == index.Failed || st == index.Fallback) && err == nil; {
			attempt = index.Attempt{Began: clock.Start(), Locks: locks}
			before := sess.Rounds
			sess.get.Start(key)
			if err := sess.run(sess.get); err != nil {
				return 0, 0, err
			}
			st, rounds = sess.get.Result().Status, sess.Rounds-before
			switch st {
			case index.Failed:
				err = sess.redial()
			case index.Fallback:
				err = sess.maintain()
			}
		}
		return st, rounds, err
	}
	for i := range locksKeys {
		key := keys.key(i)
		usual := uint64(0)
		for range 2 { // the second time, it may remember the place
			st, rounds, err := get(key, 1)
			if err != nil || st != index.Found {
				return fmt.Errorf("key %v: %v: %v", key, st, err)
			}
			usual = rounds
		}
		held, err := s.LockWrite(1, key, 0)
		if err != nil {
			return err
		}
		last := uint64(0)
		for _, locks := range []int{1, 2, 0} {
			st, rounds, err := get(key, locks)
			if err != nil || st != index.Locked {
				return fmt.Errorf("locked key %v: %v: %v", key, st, err)
			}
			if locks == 1 && rounds > usual || rounds <= last {
				return fmt.Errorf("locked key %v: %d rounds to lock %d, %d with the bound before, %d without a lock", key, rounds, locks, last, usual)
			}
			last = rounds
			if locks != 1 {
				continue
			}
			if n := lockedBeside(s, keys); n > besideMost {
				return fmt.Errorf("a lock of key %v locks %d of %d keys", key, n, locksKeys)
			}
			// The place of the row is still remembered.
			s.Release(held)
			if st, rounds, err = get(key, 1); err != nil || st != index.Found || rounds > usual {
				return fmt.Errorf("key %v after its lock: %v in %d rounds, in %d before: %v", key, st, rounds, usual, err)
			}
			if held, err = s.LockWrite(1, key, 0); err != nil {
				return err
			}
		}
		s.Release(held)
	}
	return nil
}
