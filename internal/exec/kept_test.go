package exec

import (
	"errors"
	"math"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// TestAgeOfKeptReads: a commit is as old as the first of its reads, whichever
// attempt has made it.
func TestAgeOfKeptReads(t *testing.T) {
	const old = 20 * time.Millisecond
	cat, err := tables.NewCatalog(tables.Def{Name: "t", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits}, Columns: []tables.Column{{Name: "c", Type: tables.Int64}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{db: &DB{}}
	s.db.cfg.BodyAge = math.MaxInt64
	s.kept.began = clock.Start()
	time.Sleep(old)
	x := &s.txn
	x.s, x.catalog, x.reading.Began, x.reuses = s, cat, clock.Start(), true
	var c wire.Commit
	if err := x.gather(&c, everything); err != nil {
		t.Fatal(err)
	}
	if c.Age < old {
		t.Errorf("reads of %v ago are said to be %v old", old, c.Age)
	}
}

// TestKeptReadsMakeNoBodyTooLong: a body that runs for less than Config.BodyAge is
// not refused for good because it uses what an attempt before has read.
func TestKeptReadsMakeNoBodyTooLong(t *testing.T) {
	const old = 20 * time.Millisecond
	s := &Session{db: &DB{}}
	s.kept.began = clock.Start()
	time.Sleep(old)
	x := &s.txn
	x.s, x.reading.Began, x.reuses = s, clock.Start(), true
	s.db.cfg.BodyAge = x.firstRead().Age() - old/2 // between the ages of both
	if err := x.checkAge(x.firstRead().Age()); !errors.Is(err, errAbandoned) && x.reading.Began.Age() <= s.db.cfg.BodyAge {
		t.Errorf("a body of %v with reads of %v ago, BodyAge %v: %v, want another attempt", x.reading.Began.Age(), x.firstRead().Age(), s.db.cfg.BodyAge, err)
	}
}
