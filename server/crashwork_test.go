package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// What the clients of the crash tests do besides transfers: notes that grow,
// shrink, go and come back, loads, changes of the catalogue, checkpoints.

// crashClient is one client. Each of its transactions also sets the client's
// mark to the transaction's number. So the marks say which transactions have
// committed, and what else is there must agree with that.
type crashClient struct {
	id           uint64
	tried, acked int64  // transactions
	session, seq uint64 // of the last one that was acknowledged
	closed       bool   // the session says goodbye
	notes        [notesOfClient]crashNote
	extra        int64 // the last acknowledged one that wrote the added table
}

const notesOfClient = 3

// crashNote is a row whose versions ascend. Every fourth version is its absence.
type crashNote struct {
	tried, acked int64
	n            int64 // transaction that tried the last one
}

// noteState is a note as it is found.
type noteState struct {
	version, added int64 // added: the column that was added, if it has been
	text           []byte
}

// crashDeed is something that happens once.
type crashDeed struct{ tried, acked bool }

// crashLoad is a load of stock: count rows from a key on.
type crashLoad struct {
	from, count uint64
	crashDeed
}

// Changes of the catalogue.
const (
	alterTable = iota
	alterColumn
	alterIndex
	altersMax
)

func noteText(version int64) []byte {
	return bytes.Repeat([]byte{byte(version)}, int(version*197%500))
}

// update commits a transaction of a client, with its mark.
func (l *crashLedger) update(s *txn.Session, db *txn.DB, c *crashClient, fn func(*txn.Txn) error) error {
	cat := db.Catalog()
	mark, n := cat.MustTable("mark"), c.acked+1
	extra, _ := cat.Table("extra")
	l.set(func() { c.tried = n })
	asked, err := l.patiently(db, func() error {
		return s.Update(context.Background(), func(x *txn.Txn) error {
			row := mark.NewRow()
			row.SetInt(mark.Field("n"), n)
			if err := x.Put(mark, tables.Num(c.id), row); err != nil {
				return err
			}
			if extra != nil {
				row := extra.NewRow()
				row.SetInt(extra.Field("n"), n)
				if err := x.Put(extra, tables.Num(c.id), row); err != nil {
					return err
				}
			}
			return fn(x)
		})
	})
	if err != nil {
		return err
	}
	session := reflect.ValueOf(s).Elem().FieldByName("outcomes")
	l.set(func() {
		c.acked = n
		c.session, c.seq = session.FieldByName("id").Uint(), session.FieldByName("seq").Uint()
		if asked {
			c.session = 0 // the session has a new identity
		}
		if extra != nil {
			c.extra = n
		}
	})
	return nil
}

// patiently repeats what servers refuse because crashes hold up their disks for
// long, and asks for outcomes that are unknown.
func (l *crashLedger) patiently(db *txn.DB, do func() error) (asked bool, err error) {
	if l.impatient {
		return false, do()
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		var lost *txn.UnknownOutcome
		err = do()
		for errors.As(err, &lost) {
			asked = true
			if err = db.Outcome(context.Background(), lost.ID); err == nil {
				return asked, nil
			} else if time.Now().After(end) {
				return asked, err
			} else if !errors.Is(err, txn.ErrConflict) {
				err = lost
				time.Sleep(time.Millisecond)
			}
		}
		if !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrConflict) || time.Now().After(end) {
			return asked, err
		}
	}
}

// note moves a note of a client to its next version.
func (l *crashLedger) note(s *txn.Session, db *txn.DB, c *crashClient, i int) error {
	note := db.Catalog().MustTable("note")
	key, version := tables.Num(c.id*notesOfClient+uint64(i)), c.notes[i].acked+1
	l.set(func() { c.notes[i].tried, c.notes[i].n = version, c.acked+1 })
	err := l.update(s, db, c, func(x *txn.Txn) error {
		if version%4 == 0 {
			return x.Delete(note, key)
		}
		row := note.NewRow()
		row.SetInt(note.Field("version"), version)
		if has(note, "added") {
			row.SetInt(note.Field("added"), version)
		}
		row.SetBytes(note.Field("text"), noteText(version))
		if version%4 == 1 {
			return x.Insert(note, key, row)
		}
		return x.Put(note, key, row)
	})
	if err == nil {
		l.set(func() { c.notes[i].acked = version })
	}
	return err
}

// load loads rows of stock. They are not of one transaction.
func (l *crashLedger) load(db *txn.DB, rnd *rand.Rand) error {
	stock := db.Catalog().MustTable("stock")
	x := &crashLoad{count: 1 + rnd.Uint64N(30)}
	l.set(func() {
		x.tried = true
		x.from = uint64(len(l.loads)) * 100
		l.loads = append(l.loads, x)
	})
	if _, err := l.patiently(db, func() error { return x.load(db, stock) }); err != nil {
		return err
	}
	l.set(func() { x.acked = true })
	return nil
}

func (x *crashLoad) load(db *txn.DB, stock *tables.Table) error {
	loader, err := db.NewLoader(context.Background(), stock)
	if err != nil {
		return err
	}
	for key := x.from; key < x.from+x.count; key++ {
		row := stock.NewRow()
		row.SetInt(stock.Field("amount"), int64(key*7))
		if err := loader.Add(tables.Num(key), row); err != nil {
			return err
		}
	}
	return loader.Close()
}

// alter makes one change of the catalogue.
func alter(db *txn.DB, which int) (err error) {
	ctx := context.Background()
	switch which {
	case alterTable:
		_, err = db.AddTable(ctx, tables.Def{
			Name: "extra", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		})
	case alterColumn:
		_, err = db.AddColumn(ctx, "note", tables.Column{Name: "added", Type: tables.Int64})
	case alterIndex:
		_, err = db.AddIndex(ctx, "account", tables.Secondary{
			Name: "by_balance", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "balance", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		})
	}
	return err
}

func (l *crashLedger) alter(db *txn.DB, which int) error {
	l.set(func() { l.alters[which].tried = true })
	if _, err := l.patiently(db, func() error { return alter(db, which) }); err != nil {
		return fmt.Errorf("change %d of the catalogue: %w", which, err)
	}
	l.set(func() { l.alters[which].acked = true })
	return nil
}

// work runs a client's transactions, and now and then something else.
func (l *crashLedger) work(cl *Cluster, life, client, steps int, rnd *rand.Rand) error {
	s, err := cl.DB.NewSession(context.Background())
	if err != nil {
		return err
	}
	c := &crashClient{id: uint64(10*life + client)}
	defer func() {
		l.set(func() { c.closed = true })
		s.Close()
	}()
	l.set(func() { l.clients = append(l.clients, c) })
	var mine []*transferState
	for i := range steps {
		switch pick := rnd.IntN(12); {
		case client == 0 && life < 2 && i == steps/2:
			err = l.alter(cl.DB, life)
		case client == 0 && i == steps/2:
			err = l.alter(cl.DB, alterIndex)
		case client == 1 && life < 2 && pick == 0:
			err = l.load(cl.DB, rnd)
		case client == 2 && pick == 0 && len(cl.Servers) == 1:
			err = cl.Servers[0].durable.checkpoints.run(context.Background())
		case pick < 5:
			err = l.note(s, cl.DB, c, rnd.IntN(notesOfClient))
		case pick < 8 && len(mine) > 0:
			err = l.rename(s, cl.DB, c, mine[rnd.IntN(len(mine))])
		default:
			x := &transferState{from: rnd.Uint64N(crashAccounts), amount: 1 + rnd.Int64N(100), by: c, key: fmt.Sprintf("client %d, transfer %d", c.id, i)}
			if err = l.transfer(s, cl.DB, c, x, rnd); err == nil {
				mine = append(mine, x)
			}
		}
		if err != nil {
			return fmt.Errorf("client %d, step %d: %w", c.id, i, err)
		}
	}
	if life == 1 && client == 1 {
		l.set(func() { l.sealed.tried = true })
		if _, err := l.patiently(cl.DB, func() error { return cl.DB.Seal(context.Background()) }); err != nil {
			return err
		}
		l.set(func() { l.sealed.acked = true })
	}
	return nil
}

func (l *crashLedger) transfer(s *txn.Session, db *txn.DB, c *crashClient, x *transferState, rnd *rand.Rand) error {
	x.to = (x.from + 1 + rnd.Uint64N(crashAccounts-1)) % crashAccounts
	x.renamedTo, x.tried, x.n = x.key+", under another name", true, c.acked+1
	l.set(func() { l.transfers = append(l.transfers, x) })
	cat := db.Catalog()
	if err := l.update(s, db, c, transferOnce(cat.MustTable("account"), cat.MustTable("entry"), x)); err != nil {
		return err
	}
	l.set(func() { x.acked = true })
	return nil
}

func (l *crashLedger) rename(s *txn.Session, db *txn.DB, c *crashClient, x *transferState) error {
	if x.moving {
		return nil
	}
	l.set(func() { x.moving, x.renameN = true, c.acked+1 })
	if err := l.update(s, db, c, renameOnce(db.Catalog().MustTable("entry"), x)); err != nil {
		return err
	}
	l.set(func() { x.moved = true })
	return nil
}

// readRest reads what is not of transfers.
func (f *found) readRest(x *txn.Txn, cat *tables.Catalog) error {
	numbers := func(name, column string, to map[uint64]int64, keys uint64) error {
		tab, err := cat.Table(name)
		if err != nil {
			return nil // not added yet
		}
		all := make([]tables.Key, keys)
		for i := range all {
			all[i] = tables.Num(uint64(i))
		}
		rows, err := x.GetMany(tab, all)
		for i, row := range rows {
			if row != nil {
				to[uint64(i)] = row.Int(tab.Field(column))
			}
		}
		return err
	}
	if err := numbers("mark", "n", f.marks, 30); err != nil {
		return err
	}
	if err := numbers("extra", "n", f.extra, 30); err != nil {
		return err
	}
	note, keys := cat.MustTable("note"), make([]tables.Key, 30*notesOfClient)
	for i := range keys {
		keys[i] = tables.Num(uint64(i))
	}
	rows, err := x.GetMany(note, keys)
	for i, row := range rows {
		if row != nil {
			n := noteState{version: row.Int(note.Field("version")), text: bytes.Clone(row.Bytes(note.Field("text")))}
			if has(note, "added") {
				n.added = row.Int(note.Field("added"))
			}
			f.notes[uint64(i)] = n
		}
	}
	if err != nil {
		return err
	}
	stock := cat.MustTable("stock")
	for e, err := range x.Scan(stock.Primary(), tables.First, tables.Last) {
		if err != nil {
			return err
		}
		f.stock[e.Key.Num()] = e.Row.Int(stock.Field("amount"))
	}
	account := cat.MustTable("account")
	if ix := account.Secondary("by_balance"); ix != nil {
		n := 0
		for e, err := range x.Scan(ix, tables.First, tables.Last) {
			if err != nil {
				return err
			}
			id := ix.EntryOf(e.Row)
			row := account.NewRow()
			row.SetInt(account.Field("balance"), f.balance[id.Num()])
			if want, _, err := ix.Entry(id, row, nil); err != nil || want.Compare(e.Key) != 0 {
				return fmt.Errorf("half-applied: the added index has %v for account %v, want %v: %w", e.Key, id, want, err)
			}
			n++
		}
		if n != len(f.balance) {
			return fmt.Errorf("half-applied: the added index has %d of %d accounts", n, len(f.balance))
		}
	}
	return nil
}

// checkRest compares what is not of transfers with what the clients knew.
func (l *crashLedger) checkRest(f found) error {
	for _, c := range l.clients {
		mark := f.marks[c.id]
		if mark < c.acked {
			return fmt.Errorf("lost: the mark of client %d is %d, %d was acknowledged", c.id, mark, c.acked)
		}
		if mark > c.tried {
			return fmt.Errorf("phantom: the mark of client %d is %d, %d was tried", c.id, mark, c.tried)
		}
		if extra, there := f.extra[c.id]; extra < c.extra || there && extra > mark {
			return fmt.Errorf("lost: client %d has %d in the added table, want %d to %d", c.id, extra, c.extra, mark)
		}
		for i, n := range c.notes {
			got, there := f.notes[c.id*notesOfClient+uint64(i)]
			want := n.acked
			if mark >= n.n {
				want = n.tried
			}
			if there != (want%4 != 0) || got.version != want && there || !bytes.Equal(got.text, noteText(got.version)) {
				return fmt.Errorf("lost or half-applied: note %d of client %d has version %d and %d bytes (there: %v), want version %d and %d bytes",
					i, c.id, got.version, len(got.text), there, want, len(noteText(want)))
			}
			if got.added != 0 && got.added != got.version {
				return fmt.Errorf("half-applied: note %d of client %d has %d in the added column, want 0 or %d", i, c.id, got.added, got.version)
			}
		}
	}
	n := 0
	for _, x := range l.loads {
		for key := x.from; key < x.from+x.count; key++ {
			amount, there := f.stock[key]
			if there {
				n++
			}
			if x.acked && !there || there && amount != int64(key*7) {
				return fmt.Errorf("lost: stock %d has %d (there: %v), want %d", key, amount, there, key*7)
			}
		}
	}
	if n != len(f.stock) {
		return fmt.Errorf("phantom: %d rows of stock, %d of them loaded", len(f.stock), n)
	}
	return nil
}

// checkServer compares what no transaction reads with what the clients knew: the
// catalogue, the end of loading, and the outcomes of sessions.
func (l *crashLedger) checkServer(cl *Cluster, f found) error {
	cat := cl.DB.Catalog()
	_, err := cat.Table("extra")
	for which, there := range [altersMax]bool{err == nil, has(cat.MustTable("note"), "added"), cat.MustTable("account").Secondary("by_balance") != nil} {
		if d := l.alters[which]; d.acked && !there || there && !d.tried {
			return fmt.Errorf("lost or phantom: change %d of the catalogue is there: %v, tried %v, acknowledged %v", which, there, d.tried, d.acked)
		}
	}
	for _, s := range cl.Servers {
		for _, p := range s.parts.here {
			if l.sealed.acked && !p.sealed || p.sealed && !l.sealed.tried {
				return fmt.Errorf("lost or phantom: partition %d is sealed: %v, tried %v, acknowledged %v", p.id, p.sealed, l.sealed.tried, l.sealed.acked)
			}
		}
	}
	if len(cl.Servers) > 1 { // an outcome is remembered by the transaction's coordinator
		return nil
	}
	o := cl.Servers[0].outcomes
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range l.clients {
		if c.acked == 0 || c.session == 0 {
			continue
		}
		fate, more := o.fates[c.session], f.marks[c.id] > c.acked
		if fate == nil && !more && (c.closed || c.tried > c.acked) { // nobody asks for it any more
			continue
		}
		if fate == nil || !fate.done || wire.Code(fate.resp[0]) != wire.OK || fate.seq < c.seq || more != (fate.seq > c.seq) {
			return fmt.Errorf("doubled: the outcome of client %d is %+v, its last acknowledged transaction was %d, and its mark is %d of %d acknowledged and %d tried",
				c.id, fate, c.seq, f.marks[c.id], c.acked, c.tried)
		}
	}
	return nil
}

func has(t *tables.Table, column string) bool {
	_, ok := t.Lookup(column)
	return ok
}
