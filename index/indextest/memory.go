package indextest

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
)

// CheckBounded checks that freed memory is reused. Updates must not make the
// region grow, except for memory that background work has in flight. Repeated
// inserts and deletes of the same keys must stop growing it: how much is in flight at a
// time shows in the first half of the rounds. Between rounds the
// quarantine of freed memory ends.
func CheckBounded(eng Engine, v Variant, seed uint64) error {
	e, err := NewEnv(v, seed, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	const keys, rounds = 3000 / min(Scale, 4), 24
	rowWords := 5
	if eng.Strings {
		rowWords = 200
	}
	s, err := eng.NewServer(e, rowWords)
	if err != nil {
		return err
	}
	csn := block.NewCSN(1, 0)
	row := make([]uint64, rowWords)
	write := func(k uint64, round int, del bool) error {
		held, err := s.LockWrite(1, eng.key(k), 0)
		if err != nil {
			return err
		}
		words := eng.words(k, round, rowWords)
		if err := eng.reserve(s, held, words); err != nil {
			return err
		}
		csn++
		if del {
			s.PublishDelete(held, block.Absent(csn))
		} else {
			s.Publish(held, row[:words], block.Present(csn))
		}
		if eng.Tick != nil && uint64(csn)%256 == 0 {
			eng.Tick(s)
		}
		return nil
	}
	pass := func(round int, del bool) error {
		for k := range uint64(keys) {
			if err := write(k*k, round, del); err != nil {
				return err
			}
		}
		return nil
	}
	for _, c := range []struct {
		name  string
		churn bool
	}{{"updates", false}, {"inserts and deletes", true}} {
		settled := uint64(0)
		for round := range rounds {
			if c.churn {
				if err := pass(round, true); err != nil {
					return err
				}
			}
			if err := pass(round, false); err != nil {
				return err
			}
			e.Idle(2 * block.Quarantine)
			if round == rounds/2-1 {
				settled = e.used()
			}
		}
		if used := e.used(); used > settled+settled/20 {
			return fmt.Errorf("seed %d: %d bytes used after %d rounds of %s, %d after %d", seed, settled, rounds/2, c.name, used, rounds)
		}
	}
	return s.Check()
}

// CheckFull fills a small region until index.ErrFull and demands that the
// engine survives it: nothing half done, every row still there, and deletes
// and updates go on.
func CheckFull(eng Engine, v Variant, seed uint64) error {
	e, err := NewEnv(v, seed, 1<<20)
	if err != nil {
		return err
	}
	defer e.Close()
	const rowWords = 8
	most := rowWords
	if eng.Strings {
		most = 64 * rowWords
	}
	s, err := eng.NewServer(e, most)
	if err != nil {
		return err
	}
	row := make([]uint64, rowWords)
	n := uint64(0)
	for ; ; n++ {
		key := eng.key(n * n)
		held, err := s.LockWrite(1, key, 0)
		if err == nil {
			if err = eng.reserve(s, held, rowWords); err != nil {
				s.Release(held)
			}
		}
		if err != nil {
			if n == 0 || !isFull(err) {
				return fmt.Errorf("insert %d into a small region: %w", n, err)
			}
			break
		}
		fillRow(row, key, block.NewCSN(1, n+1))
		s.Publish(held, row, block.Present(block.NewCSN(1, n+1)))
	}
	if eng.Strings {
		if err := outgrow(s, eng, n, 64*rowWords); err != nil {
			return err
		}
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("full: %w", err)
	}
	for k := range n {
		key := eng.key(k * k)
		res := s.Get(key, nil)
		if res.Status != index.Found {
			return fmt.Errorf("full: key %v is %v", key, res.Status)
		}
		if err := checkRow(&eng, key, res.Row, res.Header, shape{words: rowWords}); err != nil {
			return err
		}
	}
	for k := range n / 2 {
		held, err := s.LockWrite(1, eng.key(k*k), 0)
		if err != nil {
			return fmt.Errorf("full: delete %d: %w", k*k, err)
		}
		s.PublishDelete(held, block.Absent(block.NewCSN(1, n+k+2)))
	}
	held, err := s.LockWrite(1, eng.key(0), 0)
	if err != nil {
		return fmt.Errorf("insert after deletes: %w", err)
	}
	s.Release(held)
	return s.Check()
}

// outgrow asks for more room for the n rows of a full region, for one after the
// other, until there is none, and demands that neither room that is refused nor
// room that is not used changes a row.
func outgrow(s index.Server, eng Engine, n uint64, words int) error {
	var locked []*index.Held
	refused := false
	for k := uint64(0); k < n && !refused; k++ {
		held, err := s.LockWrite(1, eng.key(k*k), 0)
		if err != nil {
			return fmt.Errorf("full: lock %v: %w", eng.key(k*k), err)
		}
		locked = append(locked, held)
		if err = s.Reserve(held, words); err != nil && !isFull(err) {
			return fmt.Errorf("full: reserve: %w", err)
		}
		refused = err != nil
	}
	if !refused {
		return fmt.Errorf("full: there is room for %d rows of %d words", n, words)
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("full, with rooms reserved: %w", err)
	}
	for _, held := range locked {
		s.Release(held)
		if res := s.Get(held.Key, nil); res.Status != index.Found || res.Header != held.Prev {
			return fmt.Errorf("full: key %v is %v %v after its room was given back", held.Key, res.Status, res.Header)
		}
	}
	return nil
}
