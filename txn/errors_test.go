package txn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"drtmx/tables"
	"drtmx/txn"
)

var errNoMore = errors.New("sold out")

// TestErrorsSayWhatTheyConcern: an error names its table, key, partition and
// limit, at the place where it arises, at the commit, and behind an RPC.
func TestErrorsSayWhatTheyConcern(t *testing.T) {
	txn.RegisterError("txn_test.sold-out", errNoMore)
	var wide, text *tables.Table
	absent := tables.Num(boundary + 7)
	r := newRig(t, 2, txn.Config{}, func(c *tables.Catalog) []txn.Procedure {
		wide, text = c.MustTable("wide"), c.MustTable("text")
		return []txn.Procedure{
			{Name: "absent", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
				_, err := x.Get(wide, absent)
				return nil, fmt.Errorf("the article: %w", err)
			}},
			{Name: "sold", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) {
				return nil, fmt.Errorf("article 3: %w", errNoMore)
			}},
			{Name: "large", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
				return make([]byte, 2<<20), x.Put(wide, tables.Num(9), wide.NewRow())
			}},
		}
	})
	r.fillWide(t, 1, 2)
	r.fillText(t, 1, 1, 10)
	update := func(fn func(*txn.Txn) error) func() error {
		return func() error { return r.DB.Update(t.Context(), fn) }
	}
	call := func(proc string) func() error {
		return func() error { _, err := r.DB.Call(t.Context(), 0, proc, nil); return err }
	}
	one, there := tables.Num(1), textKey(1, 0)
	for _, c := range []struct {
		what string
		do   func() error
		want txn.Error
	}{
		{"get", update(func(x *txn.Txn) error { _, err := x.Get(wide, absent); return err }), txn.Error{Err: txn.ErrNotFound, Table: "wide", Key: absent, Partition: 1}},
		{"insert at commit", update(func(x *txn.Txn) error { return x.Insert(text, there, body(text, 3)) }), txn.Error{Err: txn.ErrExists, Table: "text", Key: there, Partition: 1}},
		{"update at commit", update(func(x *txn.Txn) error { return x.Update(wide, absent, wide.NewRow()) }), txn.Error{Err: txn.ErrNotFound, Table: "wide", Key: absent, Partition: 1}},
		{"insert twice", update(func(x *txn.Txn) error {
			if err := x.Insert(wide, absent, wide.NewRow()); err != nil {
				return err
			}
			return x.Insert(wide, absent, wide.NewRow())
		}), txn.Error{Err: txn.ErrExists, Table: "wide", Key: absent, Partition: 1}},
		{"key of the wrong kind", update(func(x *txn.Txn) error { return x.Delete(wide, tables.Str("a")) }), txn.Error{Err: tables.ErrKey, Table: "wide", Key: tables.Str("a"), Partition: -1}},
		{
			"long key", update(func(x *txn.Txn) error { return x.Delete(text, tables.Str(strings.Repeat("k", 5000))) }),
			txn.Error{Err: tables.ErrKey, Table: "text", Key: tables.Str(strings.Repeat("k", 5000)), Partition: -1, Limit: "MaxKeyBytes", Max: tables.MaxKeyBytes, Size: 5000},
		},
		{"write in a View", func() error { return r.DB.View(t.Context(), func(x *txn.Txn) error { return x.Delete(wide, one) }) }, txn.Error{Err: txn.ErrReadOnly, Table: "wide", Partition: -1}},
		{"a procedure's row", call("absent"), txn.Error{Err: txn.ErrNotFound, Table: "wide", Key: absent, Partition: 1}},
		{"a procedure's result", call("large"), txn.Error{Err: txn.ErrTooLarge, Partition: -1, Limit: "MaxResultBytes", Max: txn.MaxResultBytes, Size: 2 << 20}},
		{"large commit", update(func(x *txn.Txn) error {
			for i := range 40 {
				if err := x.Put(text, textKey(0, i), body(text, 30<<10)); err != nil {
					return err
				}
			}
			return nil
		}), txn.Error{Err: txn.ErrTooLarge, Partition: -1, Limit: "MaxCommitBytes", Max: txn.MaxCommitBytes}},
		{"many writes", update(func(x *txn.Txn) error {
			for i := range txn.MaxWrites + 1 {
				if err := x.Put(wide, tables.Num(uint64(i)), wide.NewRow()); err != nil {
					return err
				}
			}
			return nil
		}), txn.Error{Err: txn.ErrTooLarge, Partition: -1, Limit: "MaxWrites", Max: txn.MaxWrites, Size: txn.MaxWrites + 1}},
	} {
		err := c.do()
		t.Logf("%s: %.200v", c.what, err)
		var e *txn.Error
		if !errors.As(err, &e) || !errors.Is(err, c.want.Err) {
			t.Errorf("%s: %v is no *txn.Error of %v", c.what, err, c.want.Err)
			continue
		}
		if c.want.Size == 0 {
			c.want.Size = e.Size
		}
		if e.Table != c.want.Table || e.Key != c.want.Key || e.Partition != c.want.Partition || e.Limit != c.want.Limit || e.Max != c.want.Max || e.Size != c.want.Size {
			t.Errorf("%s: %+v\nwant %+v", c.what, *e, c.want)
		}
		if text := err.Error(); strings.Count(text, "txn: ")+strings.Count(text, "tables: ") != 1 {
			t.Errorf("%s: not one prefix: %s", c.what, text)
		}
	}
	if err := call("sold")(); !errors.Is(err, errNoMore) {
		t.Errorf("a registered error: %v", err)
	}
	if err := r.DB.View(t.Context(), func(x *txn.Txn) error { _, err := x.Get(wide, tables.Num(9)); return err }); !errors.Is(err, txn.ErrNotFound) {
		t.Errorf("a procedure whose result does not fit has written: %v", err)
	}
	if err := r.Servers[1].Close(); err != nil {
		t.Fatal(err)
	}
	var e *txn.Error
	_, err := r.DB.Call(t.Context(), 1, "sold", nil)
	if !errors.As(err, &e) || e.Server != "server-1" || !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a server that is gone: %v", err)
	}
}

// TestBodyAge: a body that runs for longer than its bound fails with an error
// that names it, and nothing is sent. One that was held up once, as by a server that did
// not answer, is attempted again.
func TestBodyAge(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	r.fillWide(t, 0, 1)
	db, err := txn.Open(t.Context(), txn.Config{Servers: r.addrs(), Dial: r.net.Dial, BodyAge: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ran := 0
	held := func(int) bool { return true } // up, in an attempt of this number
	read := func(x *txn.Txn) error {
		ran++
		_, err := x.Get(r.wide, tables.Num(0))
		if held(ran) {
			time.Sleep(40 * time.Millisecond)
		}
		return err
	}
	write := func(x *txn.Txn) error {
		if err := read(x); err != nil {
			return err
		}
		return x.Delete(r.wide, tables.Num(0))
	}
	err = db.Update(t.Context(), write)
	var e *txn.Error
	if !errors.Is(err, txn.ErrTooLarge) || !errors.As(err, &e) || e.Limit != "Config.BodyAge" || e.Max != 20 || e.Size < 40 || ran != 2 {
		t.Errorf("a body of 40 ms: %v, in %d attempts", err, ran)
	}
	t.Log(err)
	once, err := txn.Open(t.Context(), txn.Config{Servers: r.addrs(), Dial: r.net.Dial, BodyAge: 20 * time.Millisecond, Retry: txn.Retry{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	ran = 0
	if err := once.Update(t.Context(), write); !errors.Is(err, txn.ErrTooLarge) || ran != 1 {
		t.Errorf("a body of 40 ms that has one attempt: %v, in %d", err, ran)
	}
	held = func(n int) bool { return n&1 == 1 }
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"View", func() error { return db.View(t.Context(), read) }},
		{"Snapshot", func() error { return db.Snapshot(t.Context(), read) }},
		{"Update", func() error { return db.Update(t.Context(), write) }},
	} {
		ran = 0
		if err := c.do(); err != nil || ran > 2 {
			t.Errorf("%s of a body that was held up once: %v, in %d attempts", c.name, err, ran)
		}
	}
	for _, age := range []time.Duration{-1, txn.MaxBodyAge + 1} {
		if db, err := txn.Open(t.Context(), txn.Config{Servers: []string{"x"}, Dial: r.net.Dial, BodyAge: age}); err == nil || !strings.Contains(err.Error(), "BodyAge") {
			t.Errorf("BodyAge %v: %v, %v", age, db, err)
		}
	}
}
