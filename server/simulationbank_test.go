//go:build simulated

package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/internal/twophase"
	"drtmx/tables"
	"drtmx/txn"
)

// A cluster of kind bank has accounts in three tables, of which each has an index by
// owner and one by balance. Clients transfer money between accounts, open them, close
// them and change their owners. Every audit must find the same total in all tables
// together, and in each table the same accounts through each index. In the end the
// entries of all transfers are those in the ledgers of the clients.

// bank is the job of such a cluster.
type bank struct {
	r     *simulation
	of    [3]*accountTable
	entry entryTable
	ids   int64 // accounts of a table have the numbers from 1 to ids; some are closed
	total int64 // of all balances, always
	first map[account]int64
	calls float64 // the share of transactions that are procedures

	mu    sync.Mutex
	deeds []*deed
}

// account names one: the table, and the number in the table.
type account struct {
	Table int
	ID    int64
}

func (a account) code() int64 { return int64(a.Table)<<32 | a.ID }

func accountOf(code int64) account { return account{int(code >> 32), code & (1<<32 - 1)} }

// accountTable is a table of accounts.
type accountTable struct {
	tab                             *tables.Table
	strings                         bool // its keys are strings
	notes                           int  // bytes of the longest note; 0: rows have none
	id, owner, balance, count, note tables.Field
	byOwner, byBalance              *tables.Index
}

// entryTable has a row for each leg of a transaction.
type entryTable struct {
	tab              *tables.Table
	from, to, amount tables.Field
}

// leg moves an amount from one account to another. Legs without an amount show that
// a transaction has done something else.
type leg struct{ From, To, Amount int64 }

// Kinds of transactions of a bank.
const (
	transfer  = iota // from the first account to each of the others
	emptying         // all that the first account has to the second
	opening          // of the second account, with money from the first
	closing          // of the first account, the rest to the second
	reopening        // of the first account: it is deleted and inserted
	renaming         // another owner for the first account
	auditing         // an audit that leaves an entry
)

// orderNames are the parts of a case that are orders of one kind.
var orderNames = [...]string{"transfers", "emptied accounts", "opened accounts", "closed accounts", "reopened accounts", "other owners", "audits with an entry"}

// order is what a transaction is to do.
type order struct {
	Kind     int
	Stamp    uint64 // the key of its first entry
	Accounts []account
	Amount   int64
	Owner    string
	How      uint64
}

// deed is an order and what became of it.
type deed struct {
	order
	legs    []leg // nil: not known
	outcome history.Outcome
	id      txn.ID // if the outcome is not known; may be zero
}

// pairFloor is what the accounts of one number in the first two tables have together
// at least, if both are open.
const pairFloor = 30

// drawBank draws a bank.
func (r *simulation) drawBank(uint64) job {
	s := r.s.Split("bank")
	b := &bank{r: r, ids: int64(3 + s.Intn([]int{3, 14}[s.Intn(2)])), first: map[account]int64{}, calls: 0.6 * s.Float64()}
	var defs []tables.Definer
	for i := range b.of {
		b.of[i] = &accountTable{strings: i == 1}
		defs = append(defs, b.of[i].define(r.w, i, s))
	}
	spread := tables.Partitioning{Kind: tables.ByHash}
	if s.Bool(0.5) {
		spread = tables.Partitioning{Kind: tables.ByBits, Shift: 32} // by client
	}
	defs = append(defs, tables.Def{
		Name: "entry", Primary: tables.Ordered, Partition: spread,
		Columns: []tables.Column{{Name: "from", Type: tables.Int64}, {Name: "to", Type: tables.Int64}, {Name: "amount", Type: tables.Int64}},
	})
	cat, err := tables.CatalogOf(defs...)
	if err != nil {
		panic(err)
	}
	for i, a := range b.of {
		a.bind(cat.MustTable(accountTables[i]))
	}
	e := cat.MustTable("entry")
	b.entry = entryTable{e, e.Field("from"), e.Field("to"), e.Field("amount")}
	r.u.other = &workload{cat, b.procedures()}
	r.drawJob(s)
	return b
}

// drawJob draws what kinds of jobs have in common.
func (r *simulation) drawJob(s *rng.Stream) {
	l := &r.l
	l.TxnsPerClient, l.Clients = 10+s.Intn([]int{10, 50}[s.Intn(2)]), 2+s.Intn(5)
	if s.Bool(0.5) {
		r.onDisks()
	} else if s.Bool(0.5) {
		r.u.limits = twophase.Limits{Open: 1 + s.Intn(4), Kept: 2 + s.Intn(14)}
	}
}

var accountTables = [...]string{"current", "savings", "hashed"}

// define makes the definition of a table of accounts.
func (a *accountTable) define(w *sim.World, i int, s *rng.Stream) tables.Def {
	d := tables.Def{Name: accountTables[i], Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{
		{Name: "id", Type: tables.Int64}, {Name: "owner", Type: tables.Text, Size: 12}, {Name: "balance", Type: tables.Int64}, {Name: "count", Type: tables.Int64},
	}}
	some, notes := s.Bool(0.5), []int{16, 200, 3000}[s.Intn(3)]
	if some && w.Part("notes of "+d.Name) {
		a.notes = notes
		d.Columns = append(d.Columns, tables.Column{Name: "note", Type: tables.Bytes, Size: a.notes})
	}
	include := []string{"id", "owner", "balance"}
	owner := tables.Secondary{
		Name: "by_owner", Include: include, Partition: tables.Partitioning{Kind: tables.ByHash},
		Key: []tables.KeyPart{{Column: "owner", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
	}
	balance := tables.Secondary{
		Name: "by_balance", Include: include, Partition: tables.Partitioning{Kind: tables.ByHash},
		Key: []tables.KeyPart{{Column: "balance", Bits: 32, How: tables.Value}, {Column: "id", Bits: 24, How: tables.Value}},
	}
	if s.Bool(0.5) {
		owner.Partition = tables.Partitioning{Kind: tables.ByPrefix, Prefix: 2}
	}
	switch {
	case a.strings:
		d.Key, d.Partition = tables.StringKey, tables.Partitioning{Kind: tables.ByPrefix, Prefix: uint(len(accountPrefix) + 1)}
		balance.Key = []tables.KeyPart{{Column: "balance", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}}
	case i == 2:
		d.Primary = tables.Hash
	case s.Bool(0.5):
		d.Partition = tables.Partitioning{Kind: tables.ByBits, Shift: uint(s.Intn(5))}
	}
	d.Secondary = []tables.Secondary{owner, balance}
	return d
}

func (a *accountTable) bind(t *tables.Table) {
	a.tab, a.byOwner, a.byBalance = t, t.Secondary("by_owner"), t.Secondary("by_balance")
	a.id, a.owner, a.balance, a.count = t.Field("id"), t.Field("owner"), t.Field("balance"), t.Field("count")
	if a.notes > 0 {
		a.note = t.Field("note")
	}
}

const accountPrefix = "accounts of savings, "

func (a *accountTable) key(id int64) tables.Key {
	if !a.strings {
		return tables.Num(uint64(id))
	}
	b := append([]byte(accountPrefix), byte(id&3), byte(id))
	return tables.Str(append(b, bytes.Repeat([]byte{0xff}, int(id&3))...))
}

// line is one account as an index has it.
type line struct {
	id, balance int64
	owner       string
}

// noteOf is the note of a row: it grows and shrinks with every change.
func (a *accountTable) noteOf(id, count int64) []byte {
	number := tables.Mix(uint64(id)<<32 ^ uint64(count))
	return filler(number, int(number>>32)%(a.notes+1))
}

// read reads an account. It returns errClosed if there is none.
func (a *accountTable) read(t *txn.Txn, id int64) (line, int64, error) {
	row, err := t.Get(a.tab, a.key(id))
	if errors.Is(err, txn.ErrNotFound) {
		return line{}, 0, errClosed
	}
	if err != nil {
		return line{}, 0, err
	}
	return a.look(row, id)
}

// look checks a row and reads it.
func (a *accountTable) look(row tables.Row, id int64) (line, int64, error) {
	x, count := line{row.Int(a.id), row.Int(a.balance), string(row.Text(a.owner))}, row.Int(a.count)
	if x.id != id || x.balance < 0 {
		return x, 0, fmt.Errorf("the row of account %d of %s is %v", id, a.tab.Name(), x)
	}
	if a.notes > 0 && !bytes.Equal(row.Bytes(a.note), a.noteOf(id, count)) {
		return x, 0, fmt.Errorf("the note of account %d of %s, change %d, is another one, of %d bytes", id, a.tab.Name(), count, len(row.Bytes(a.note)))
	}
	return x, count, nil
}

func (a *accountTable) row(x line, count int64) tables.Row {
	row := a.tab.NewRow()
	row.SetInt(a.id, x.id)
	row.SetText(a.owner, []byte(x.owner))
	row.SetInt(a.balance, x.balance)
	row.SetInt(a.count, count)
	if a.notes > 0 {
		row.SetBytes(a.note, a.noteOf(x.id, count))
	}
	return row
}

// errClosed and errFunds are refusals of the bank, in the form of a body that rolls back.
var (
	errClosed = fmt.Errorf("the account is closed, or open: %w", errRollBack)
	errFunds  = fmt.Errorf("insufficient funds: %w", errRollBack)
)

// populate opens accounts, some with the same number in the first two tables.
func (b *bank) populate(_ *setup, x *cluster) error {
	s := b.r.s.Split("accounts")
	for i, a := range b.of {
		var lines []line
		for id := int64(1); id <= b.ids; id++ {
			if id == 1 || s.Bool(0.75) {
				x := line{id, int64(pairFloor + s.Intn(100)), drawOwner(s)}
				b.first[account{i, id}] = x.balance
				b.total += x.balance
				lines = append(lines, x)
			}
		}
		err := insist(func() error {
			return x.DB.Update(context.Background(), func(t *txn.Txn) (err error) {
				for _, x := range lines {
					err = errors.Join(err, t.Put(a.tab, a.key(x.id), a.row(x, 0)))
				}
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	time.Sleep(3 * time.Second) // until no stale snapshot may see less
	return nil
}

// drawOwner draws one of a few owners, of names that are prefixes of others.
func drawOwner(s *rng.Stream) string {
	return []string{"A", "Al", "Ale", "Bo", "Bob", "Cy", "", "Dee\x00", "Dee\x00\x01", "Eve"}[s.Intn(10)]
}

// procedures are the orders and, read-only, the audit.
func (b *bank) procedures() []txn.Procedure {
	return []txn.Procedure{
		{Name: "order", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			var o order
			if err := json.Unmarshal(args, &o); err != nil {
				return nil, err
			}
			legs, err := b.carryOut(t, &o)
			switch {
			case errors.Is(err, errRollBack):
				return nil, errRollBack // as clients know it
			case err != nil:
				return nil, err
			}
			return json.Marshal(legs)
		}},
		{Name: "audit", ReadOnly: true, Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			return nil, b.audit(t, binary.LittleEndian.Uint64(args))
		}},
	}
}

// carryOut is the body of all transactions that write.
func (b *bank) carryOut(t *txn.Txn, o *order) (legs []leg, err error) {
	from, a := o.Accounts[0], b.of[o.Accounts[0].Table]
	move := func(to account, amount int64) error {
		legs = append(legs, leg{from.code(), to.code(), amount})
		return errors.Join(b.book(t, from, -amount), b.book(t, to, amount))
	}
	mark := func() { legs = append(legs, leg{from.code(), from.code(), 0}) }
	switch o.Kind {
	case transfer:
		for i := 1; i < len(o.Accounts) && err == nil; i++ {
			err = move(o.Accounts[i], o.Amount)
		}
	case emptying, closing:
		var x line
		if x, _, err = a.read(t, from.ID); err != nil {
			return nil, err
		}
		if err = move(o.Accounts[1], x.balance); err == nil && o.Kind == closing {
			err = t.Delete(a.tab, a.key(from.ID))
		}
	case opening:
		to := o.Accounts[1]
		c := b.of[to.Table]
		if _, _, err = c.read(t, to.ID); err == nil {
			return nil, errClosed
		}
		if errors.Is(err, errClosed) {
			err = t.Insert(c.tab, c.key(to.ID), c.row(line{to.ID, 0, o.Owner}, 0))
		}
		if err == nil {
			err = move(to, o.Amount+pairFloor)
		}
	case reopening, renaming:
		x, count, e := a.read(t, from.ID)
		if e != nil {
			return nil, e
		}
		mark()
		x.owner = o.Owner
		if o.Kind == renaming {
			err = t.Update(a.tab, a.key(from.ID), a.row(x, count+1))
		} else {
			err = errors.Join(t.Delete(a.tab, a.key(from.ID)), t.Insert(a.tab, a.key(from.ID), a.row(x, 0)))
		}
	case auditing:
		mark()
		err = b.audit(t, o.How)
	}
	if err == nil {
		err = b.pairs(t, o)
	}
	for i := 0; i < len(legs) && err == nil; i++ {
		row := b.entry.tab.NewRow()
		row.SetInt(b.entry.from, legs[i].From)
		row.SetInt(b.entry.to, legs[i].To)
		row.SetInt(b.entry.amount, legs[i].Amount)
		err = t.Insert(b.entry.tab, tables.Num(o.Stamp+uint64(i)), row)
	}
	return legs, err
}

// book changes the balance of an account.
func (b *bank) book(t *txn.Txn, who account, amount int64) error {
	a := b.of[who.Table]
	x, count, err := a.read(t, who.ID)
	if err != nil {
		return err
	}
	if x.balance += amount; x.balance < 0 {
		return errFunds
	}
	return t.Update(a.tab, a.key(who.ID), a.row(x, count+1))
}

// pairs keeps the rule of pairs: it reads an account that others may change.
func (b *bank) pairs(t *txn.Txn, o *order) error {
	if from := o.Accounts[0]; o.Kind != auditing && from.Table < 2 {
		x, _, err := b.of[0].read(t, from.ID)
		y, _, err2 := b.of[1].read(t, from.ID)
		for _, err := range []error{err, err2} {
			if errors.Is(err, errClosed) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		if x.balance+y.balance < pairFloor {
			return errFunds
		}
	}
	return nil
}
