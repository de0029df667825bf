package indextest

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
)

// CheckBounded demands that memory once used is used again: updates do not
// make the region grow at all, beyond what background work keeps in flight,
// and inserting and deleting the same keys over and over comes to rest.
func CheckBounded(eng Engine, v Variant, seed uint64) error {
	e, err := NewEnv(v, seed, 0)
	if err != nil {
		return err
	}
	defer e.Close()
	const keys, rounds, rowWords = 3000 / min(Scale, 4), 12, 5
	s, err := eng.NewServer(e, rowWords)
	if err != nil {
		return err
	}
	csn := block.NewCSN(1, 0)
	row := make([]uint64, rowWords)
	write := func(k index.Key, del bool) error {
		held, err := s.LockWrite(1, k, 0)
		if err != nil {
			return err
		}
		csn++
		if del {
			s.PublishDelete(held, block.Absent(csn))
		} else {
			s.Publish(held, row, block.Present(csn))
		}
		if eng.Tick != nil && uint64(csn)%256 == 0 {
			eng.Tick(s)
		}
		return nil
	}
	pass := func(del bool) error {
		for k := range uint64(keys) {
			if err := write(index.Num(k*k), del); err != nil {
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
				if err := pass(true); err != nil {
					return err
				}
			}
			if err := pass(false); err != nil {
				return err
			}
			if round == 3 {
				settled = e.Arena.Used()
			}
		}
		if used := e.Arena.Used(); used > settled+settled/20 {
			return fmt.Errorf("seed %d: %d bytes used after four rounds of %s, %d after %d rounds", seed, settled, c.name, used, rounds)
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
	s, err := eng.NewServer(e, rowWords)
	if err != nil {
		return err
	}
	row := make([]uint64, rowWords)
	n := uint64(0)
	for ; ; n++ {
		held, err := s.LockWrite(1, index.Num(n*n), 0)
		if err != nil {
			if n == 0 || !isFull(err) {
				return fmt.Errorf("insert %d into a small region: %w", n, err)
			}
			break
		}
		fillRow(row, index.Num(n*n), block.NewCSN(1, n+1))
		s.Publish(held, row, block.Present(block.NewCSN(1, n+1)))
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("full: %w", err)
	}
	for k := range n {
		res := s.Get(index.Num(k*k), nil)
		if res.Status != index.Found {
			return fmt.Errorf("full: key %d is %v", k*k, res.Status)
		}
		if err := checkRow(index.Num(k*k), res.Row, res.Header, shape{words: rowWords}); err != nil {
			return err
		}
	}
	for k := range n / 2 {
		held, err := s.LockWrite(1, index.Num(k*k), 0)
		if err != nil {
			return fmt.Errorf("full: delete %d: %w", k*k, err)
		}
		s.PublishDelete(held, block.Absent(block.NewCSN(1, n+k+2)))
	}
	held, err := s.LockWrite(1, index.Num(0), 0)
	if err != nil {
		return fmt.Errorf("insert after deletes: %w", err)
	}
	s.Release(held)
	return s.Check()
}
