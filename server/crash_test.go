package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// The bank of the crash tests: accounts, and for each transfer an entry with a
// string key and the whole transfer in it. So what an entry says happened can be
// compared with the balances.
const (
	crashAccounts = 12
	crashBalance  = int64(1000)
)

func crashCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	c, err := tables.NewCatalog(
		tables.Def{
			Name: "account", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "id", Type: tables.Int64}, {Name: "balance", Type: tables.Int64}, {Name: "owner", Type: tables.Int32}},
			Secondary: []tables.Secondary{{
				Name: "by_owner", Include: []string{"balance"}, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 32},
				Key: []tables.KeyPart{{Column: "owner", Bits: 32, How: tables.Value}, {Column: "id", Bits: 32, How: tables.Value}},
			}},
		},
		tables.Def{
			Name: "entry", Key: tables.StringKey, Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: []tables.Column{
				{Name: "from", Type: tables.Int64},
				{Name: "to", Type: tables.Int64},
				{Name: "amount", Type: tables.Int64},
				{Name: "text", Type: tables.Bytes, Size: 600},
			},
		},
		tables.Def{
			Name: "note", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "version", Type: tables.Int64}, {Name: "text", Type: tables.Bytes, Size: 600}},
		},
		tables.Def{
			Name: "stock", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "amount", Type: tables.Int64}},
			Secondary: []tables.Secondary{{
				Name: "by_amount", Partition: tables.Partitioning{Kind: tables.ByHash},
				Key: []tables.KeyPart{{Column: "amount", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
			}},
		},
		tables.Def{
			Name: "mark", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// transferState is what a client knows of a transfer. A renamed one has its
// entry under another key.
type transferState struct {
	from, to       uint64
	amount         int64
	tried, acked   bool
	moving, moved  bool // its rename was tried, was acknowledged
	key, renamedTo string
	by             *crashClient
	n, renameN     int64 // numbers of the transactions
}

// crashLedger is what the clients know. Nothing is ever removed from it.
type crashLedger struct {
	mu        sync.Mutex
	transfers []*transferState
	accounts  [crashAccounts]bool // whose insert was acknowledged
	clients   []*crashClient
	loads     []*crashLoad
	alters    [altersMax]crashDeed // changes of the catalogue
	sealed    crashDeed
	impatient bool // the first error ends a client
}

// known returns a copy, for the moment of a crash.
func (l *crashLedger) known() *crashLedger {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &crashLedger{accounts: l.accounts, alters: l.alters, sealed: l.sealed}
	clients := map[*crashClient]*crashClient{}
	for _, c := range l.clients {
		d := *c
		clients[c] = &d
		k.clients = append(k.clients, &d)
	}
	for _, s := range l.transfers {
		c := *s
		c.by = clients[s.by]
		k.transfers = append(k.transfers, &c)
	}
	for _, x := range l.loads {
		c := *x
		k.loads = append(k.loads, &c)
	}
	return k
}

func (l *crashLedger) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// crashBank opens the bank on a file system.
func crashBank(fs vfs.FS, cat *tables.Catalog, servers int, seed uint64) (*Cluster, error) {
	return Embedded(context.Background(), crashConfig(fs, cat, servers, seed))
}

func crashConfig(fs vfs.FS, cat *tables.Catalog, servers int, seed uint64) EmbeddedConfig {
	return EmbeddedConfig{
		Catalog: cat, Servers: servers, Partitions: max(servers, 2), Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 16 << 10, MemoryBytes: 32 << 20,
		CheckpointBytes: 12 << 10, CheckpointRate: 1 << 40,
		Network: inproc.New(inproc.Options{Faults: inproc.Faults{Duplicate: 0.2}, Seed: seed}),
	}
}

// transferOnce moves money and inserts the entry.
func transferOnce(account, entry *tables.Table, s *transferState) func(*txn.Txn) error {
	return func(x *txn.Txn) error {
		for _, side := range []struct {
			id  uint64
			sum int64
		}{{s.from, -s.amount}, {s.to, s.amount}} {
			row, err := x.Get(account, tables.Num(side.id))
			if err != nil {
				return err
			}
			row = row.Clone()
			row.SetInt(account.Field("balance"), row.Int(account.Field("balance"))+side.sum)
			if err := x.Put(account, tables.Num(side.id), row); err != nil {
				return err
			}
		}
		return x.Insert(entry, tables.Str(s.key), entryRow(entry, s))
	}
}

func entryRow(entry *tables.Table, s *transferState) tables.Row {
	row := entry.NewRow()
	row.SetInt(entry.Field("from"), int64(s.from))
	row.SetInt(entry.Field("to"), int64(s.to))
	row.SetInt(entry.Field("amount"), s.amount)
	row.SetBytes(entry.Field("text"), make([]byte, s.amount*5))
	return row
}

// renameOnce gives an entry another key: a delete and an insert, perhaps in two
// partitions.
func renameOnce(entry *tables.Table, s *transferState) func(*txn.Txn) error {
	return func(x *txn.Txn) error {
		if err := x.Delete(entry, tables.Str(s.key)); err != nil {
			return err
		}
		return x.Insert(entry, tables.Str(s.renamedTo), entryRow(entry, s))
	}
}

// fill inserts the accounts, each in a transaction of its own.
func (l *crashLedger) fill(db *txn.DB) error {
	account := db.Catalog().MustTable("account")
	for id := range uint64(crashAccounts) {
		row := account.NewRow()
		row.SetInt(account.Field("id"), int64(id))
		row.SetInt(account.Field("balance"), crashBalance)
		row.SetInt(account.Field("owner"), int64(id%3))
		insert := func(x *txn.Txn) error { return x.Insert(account, tables.Num(id), row) }
		if _, err := l.patiently(db, func() error { return db.Update(context.Background(), insert) }); err != nil {
			return err
		}
		l.set(func() { l.accounts[id] = true })
	}
	return nil
}

// found is the content of the bank.
type found struct {
	balance   map[uint64]int64
	bySecond  int64
	transfers map[string]transferState
	notes     map[uint64]noteState
	stock     map[uint64]int64
	marks     map[uint64]int64
	extra     map[uint64]int64
}

func readBank(db *txn.DB) (f found, err error) {
	cat := db.Catalog() // which an index that is being built may change meanwhile
	account, entry := cat.MustTable("account"), cat.MustTable("entry")
	byOwner := account.Secondary("by_owner")
	err = db.View(context.Background(), func(x *txn.Txn) error {
		f = found{
			balance: map[uint64]int64{}, transfers: map[string]transferState{}, notes: map[uint64]noteState{},
			stock: map[uint64]int64{}, marks: map[uint64]int64{}, extra: map[uint64]int64{},
		}
		for id := range uint64(crashAccounts) {
			row, err := x.Get(account, tables.Num(id))
			if errors.Is(err, txn.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			f.balance[id] = row.Int(account.Field("balance"))
		}
		for e, err := range x.Scan(byOwner, tables.First, tables.Last) {
			if err != nil {
				return err
			}
			f.bySecond += e.Row.Int(byOwner.Field("balance"))
		}
		for e, err := range x.Scan(entry.Primary(), tables.First, tables.Last) {
			if err != nil {
				return err
			}
			f.transfers[string(e.Key.Bytes())] = transferState{
				from: uint64(e.Row.Int(entry.Field("from"))), to: uint64(e.Row.Int(entry.Field("to"))), amount: e.Row.Int(entry.Field("amount")),
			}
		}
		return f.readRest(x, cat)
	})
	return f, err
}

// check compares a recovered bank with what the clients knew at the crash:
// nothing acknowledged is lost, nothing is there twice or by half, and nothing
// that was never tried.
func (l *crashLedger) check(f found) error {
	want := map[uint64]int64{}
	for id, acked := range l.accounts {
		_, there := f.balance[uint64(id)]
		if acked && !there {
			return fmt.Errorf("lost: account %d was acknowledged", id)
		}
		want[uint64(id)] = crashBalance
	}
	matched := 0
	for _, s := range l.transfers {
		at, here := f.transfers[s.key]
		then, there := f.transfers[s.renamedTo]
		switch {
		case here && there:
			return fmt.Errorf("half-applied: %q is there under both names", s.key)
		case s.acked && !here && !there:
			return fmt.Errorf("lost: %q was acknowledged", s.key)
		case s.moved && !there:
			return fmt.Errorf("lost: the rename of %q was acknowledged", s.key)
		case there && !s.moving:
			return fmt.Errorf("phantom: %q was never renamed", s.key)
		case !here && !there:
			if s.by != nil && s.n > 0 && f.marks[s.by.id] >= s.n {
				return fmt.Errorf("half-applied: the mark of client %d is %d, and %q is not there", s.by.id, f.marks[s.by.id], s.key)
			}
			continue
		case s.by != nil && f.marks[s.by.id] < s.n:
			return fmt.Errorf("half-applied: %q is there, and the mark of client %d is %d, want %d", s.key, s.by.id, f.marks[s.by.id], s.n)
		case s.by != nil && s.moving && there != (f.marks[s.by.id] >= s.renameN):
			return fmt.Errorf("half-applied: %q is renamed: %v, and the mark of client %d is %d, want %d", s.key, there, s.by.id, f.marks[s.by.id], s.renameN)
		}
		if there {
			at = then
		}
		if at.from != s.from || at.to != s.to || at.amount != s.amount {
			return fmt.Errorf("%q is %+v, want %+v", s.key, at, s)
		}
		matched++
		want[s.from] -= s.amount
		want[s.to] += s.amount
	}
	if matched != len(f.transfers) {
		return fmt.Errorf("phantom: %d entries, %d of them known", len(f.transfers), matched)
	}
	var sum int64
	for id, b := range f.balance {
		if b != want[id] {
			return fmt.Errorf("half-applied or doubled: account %d has %d, its entries say %d", id, b, want[id])
		}
		sum += b
	}
	if sum != f.bySecond {
		return fmt.Errorf("half-applied: the accounts have %d, by the secondary index %d", sum, f.bySecond)
	}
	return l.checkRest(f)
}
