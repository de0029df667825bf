//go:build simulated

package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// In a cluster of kind queue clients insert items behind the last one of a few queues
// and take them from the front. Items change their size meanwhile. So rows come and go
// in leaves that are split and merged, and memory is used again and again. In the end
// each item was taken once or is still there, and nothing else is.

// queues is the job of such a cluster.
type queues struct {
	r     *simulation
	n     int  // queues
	tail  int  // how producers find the place of an item: see the constants
	longs int  // bytes of the longest item; 0: all have eight
	texts bool // keys are strings
	waves int  // transactions of a client that only insert, and then that only take; 0: none
	calls float64

	item struct {
		tab      *tables.Table
		id, body tables.Field
		byItem   *tables.Index // may be nil
	}
	receipt struct {
		tab             *tables.Table
		id, queue, from tables.Field
	}
	next struct {
		tab *tables.Table
		at  tables.Field
	}

	mu       sync.Mutex
	inserts  []*insertion
	takes    []*taking
	changes  map[itemID][2]int // changes of an item: acknowledged, and those that may have committed
	doubtful map[itemID]bool   // items that may arrive late
}

// Ways in which producers find the place behind the last item.
const (
	behindLast = iota // they read the last item
	byCounter         // a row has the next place
	byTime            // the time is the place, so some items come between others
	tailWays
)

// itemID is the producer of an item, and its number there.
type itemID struct{ Producer, Number int64 }

const revisionBits = 16

// pack is the content of an item in a number.
func (id itemID) pack(revision int64) int64 {
	return id.Producer<<40 | id.Number<<revisionBits | revision
}

func unpack(n int64) (id itemID, revision int64) {
	return itemID{n >> 40, n >> revisionBits & (1<<24 - 1)}, n & (1<<revisionBits - 1)
}

// drawQueues draws queues.
func (r *simulation) drawQueues(uint64) job {
	s := r.s.Split("queue")
	q := &queues{
		r: r, n: 1 + s.Intn(4), tail: s.Intn(tailWays), texts: s.Bool(0.5), waves: []int{0, 4, 15}[s.Intn(3)], calls: 0.5 * s.Float64(),
		changes: map[itemID][2]int{}, doubtful: map[itemID]bool{},
	}
	q.longs = []int{0, 24, 300, 4000}[s.Intn(4)]
	if q.texts && q.longs == 0 {
		q.longs = 24
	}
	cat, err := tables.CatalogOf(q.define(s)...)
	if err != nil {
		panic(err)
	}
	q.item.tab, q.receipt.tab, q.next.tab = cat.MustTable("item"), cat.MustTable("receipt"), cat.MustTable("next")
	q.item.id, q.item.byItem = q.item.tab.Field("id"), q.item.tab.Secondary("by_item")
	if q.longs > 0 {
		q.item.body = q.item.tab.Field("body")
	}
	f := q.receipt.tab.Field
	q.receipt.id, q.receipt.queue, q.receipt.from = f("id"), f("queue"), f("place")
	q.next.at = q.next.tab.Field("place")
	r.u.other = &workload{cat, q.procedures()}
	r.drawJob(s)
	r.l.TxnsPerClient += 10
	if s.Bool(0.3) {
		r.l.Rest = 20 * time.Second // freed memory is used again after its quarantine
	}
	if s.Bool(0.3) {
		r.u.memory = []uint64{1, 2, 4}[s.Intn(3)] << 18
		if r.d != nil {
			r.u.memory = max(r.u.memory, 1<<20) // what was there must fit after a crash, too
		}
	}
	return q
}

const queuePrefix = "the items of queue "

// define makes the definitions of the tables.
func (q *queues) define(s *rng.Stream) []tables.Definer {
	spread := []tables.Partitioning{{Kind: tables.ByBits, Shift: placeBits}, {Kind: tables.ByHash}}[s.Intn(2)]
	item := tables.Def{Name: "item", Primary: tables.Ordered, Partition: spread, Columns: []tables.Column{{Name: "id", Type: tables.Int64}}}
	if q.longs > 0 {
		item.Columns = append(item.Columns, tables.Column{Name: "body", Type: tables.Bytes, Size: q.longs})
	}
	if q.texts {
		item.Key = tables.StringKey
		if spread.Kind == tables.ByBits {
			item.Partition = tables.Partitioning{Kind: tables.ByPrefix, Prefix: uint(len(queuePrefix) + 1)}
		}
	}
	if s.Bool(0.4) && q.r.w.Part("an index by item") {
		item.Secondary = []tables.Secondary{{
			Name: "by_item", Include: []string{"id"}, Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "id", Bits: 60, How: tables.Value}},
		}}
	}
	number := func(name string) tables.Column { return tables.Column{Name: name, Type: tables.Int64} }
	byClient := []tables.Partitioning{{Kind: tables.ByBits, Shift: 32}, {Kind: tables.ByHash}}[s.Intn(2)]
	return []tables.Definer{
		item,
		tables.Def{Name: "receipt", Primary: tables.Ordered, Partition: byClient, Columns: []tables.Column{number("id"), number("queue"), number("place")}},
		tables.Def{Name: "next", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{number("place")}},
	}
}

// key is the key of a place in a queue.
func (q *queues) key(queue int, place uint64) tables.Key {
	if !q.texts {
		return tables.Num(uint64(queue)<<placeBits | place)
	}
	b := binary.BigEndian.AppendUint64(append([]byte(queuePrefix), byte(queue)), place)
	return tables.Str(append(b, bytes.Repeat([]byte{0xff}, int(place&3))...))
}

// place is the inverse of key.
func (q *queues) place(key tables.Key) (queue int, place uint64) {
	if !q.texts {
		return int(key.Num() >> placeBits), key.Num() & lastPlace
	}
	b := key.Bytes()[len(queuePrefix):]
	return int(b[0]), binary.BigEndian.Uint64(b[1:])
}

const (
	placeBits = 48
	lastPlace = 1<<placeBits - 1
)

// span is the range of a queue.
func (q *queues) span(queue int) (lo, hi tables.Key) { return q.key(queue, 0), q.key(queue, lastPlace) }

// row makes the row of an item. Its length and its content depend on what it is.
func (q *queues) row(id itemID, revision int64) tables.Row {
	row, n := q.item.tab.NewRow(), id.pack(revision)
	row.SetInt(q.item.id, n)
	if q.longs > 0 {
		row.SetBytes(q.item.body, q.bodyOf(n))
	}
	return row
}

func (q *queues) bodyOf(n int64) []byte {
	number := tables.Mix(uint64(n))
	return filler(number, int(number>>32)%(q.longs+1))
}

// found is an item in a queue.
type found struct {
	ID       itemID
	Revision int64
	Queue    int
	Place    uint64
}

// look checks a row and reads it.
func (q *queues) look(e tables.Entry) (found, error) {
	n := e.Row.Int(q.item.id)
	id, revision := unpack(n)
	queue, place := q.place(e.Key)
	if q.longs > 0 && !bytes.Equal(e.Row.Bytes(q.item.body), q.bodyOf(n)) {
		return found{}, fmt.Errorf("%w: item %v, revision %d, at %v has the content of another row: %d bytes", errItem, id, revision, e.Key, len(e.Row.Bytes(q.item.body)))
	}
	return found{id, revision, queue, place}, nil
}

// errItem is the error of an item that must not be.
var errItem = errors.New("queue")

// front reads the first items of a queue, in one of three ways.
func (q *queues) front(t *txn.Txn, queue, limit int, how uint64) (all []found, err error) {
	lo, hi := q.span(queue)
	if how&1 != 0 {
		for e, err := range t.Scan(q.item.tab.Primary(), lo, hi) {
			if err != nil {
				return nil, err
			}
			x, err := q.look(e)
			if err != nil {
				return nil, err
			}
			if all = append(all, x); len(all) == limit {
				break
			}
		}
		return all, nil
	}
	entries, err := t.QueueScan(q.item.tab.Primary(), lo, hi, limit).Entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		x, err := q.look(e)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// back returns the place behind the last item of a queue.
func (q *queues) back(t *txn.Txn, queue int, o *insertion) (uint64, error) {
	switch q.tail {
	case byTime:
		return o.Time, nil
	case byCounter:
		place := int64(1)
		row, err := t.Get(q.next.tab, tables.Num(uint64(queue)))
		if err != nil && !errors.Is(err, txn.ErrNotFound) {
			return 0, err
		}
		if err == nil {
			place = row.Int(q.next.at)
		}
		fresh := q.next.tab.NewRow()
		fresh.SetInt(q.next.at, place+int64(len(o.IDs)))
		return uint64(place), t.Put(q.next.tab, tables.Num(uint64(queue)), fresh)
	}
	lo, hi := q.span(queue)
	for e, err := range t.ScanReverse(q.item.tab.Primary(), lo, hi) {
		if err != nil {
			return 0, err
		}
		_, place := q.place(e.Key)
		return place + 1, nil
	}
	return 1, nil // places are used again
}

// insertion is a transaction that inserts items.
type insertion struct {
	IDs   []itemID
	Queue int
	Time  uint64 // a place of its own
	ending
}

// insert is its body.
func (q *queues) insert(t *txn.Txn, o *insertion) error {
	place, err := q.back(t, o.Queue, o)
	for i, id := range o.IDs {
		if err == nil {
			err = t.Insert(q.item.tab, q.key(o.Queue, place+uint64(i)), q.row(id, 0))
		}
	}
	return err
}

// taking is a transaction that takes the first items of queues, and leaves a receipt
// for each.
type taking struct {
	Client  int
	Stamp   uint64   // the key of its first receipt
	Queues  []int    // distinct
	Limit   int      // of items from each queue
	Settled []uint64 // receipts of another one, to be deleted
	How     uint64

	items []found // nil: not known
	late  bool    // the client has not seen when it committed
	ending
}

// receiptsMax bounds the receipts of one transaction.
const receiptsMax = 16

// take is its body.
func (q *queues) take(t *txn.Txn, o *taking) (items []found, err error) {
	items = []found{}
	for _, queue := range o.Queues {
		first, err := q.front(t, queue, o.Limit, o.How)
		if err != nil {
			return nil, err
		}
		for _, x := range first {
			if err := t.Delete(q.item.tab, q.key(queue, x.Place)); err != nil {
				return nil, err
			}
		}
		items = append(items, first...)
	}
	for i, x := range items {
		row := q.receipt.tab.NewRow()
		row.SetInt(q.receipt.id, x.ID.pack(x.Revision))
		row.SetInt(q.receipt.queue, int64(x.Queue))
		row.SetInt(q.receipt.from, int64(x.Place))
		if err := t.Insert(q.receipt.tab, tables.Num(o.Stamp+uint64(i)), row); err != nil {
			return nil, err
		}
	}
	for _, stamp := range o.Settled {
		if err := t.Delete(q.receipt.tab, tables.Num(stamp)); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// procedures are those of transactions that write, and the audit.
func (q *queues) procedures() []txn.Procedure {
	return []txn.Procedure{
		{Name: "insert", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			var o insertion
			if err := json.Unmarshal(args, &o); err != nil {
				return nil, err
			}
			return nil, q.insert(t, &o)
		}},
		{Name: "take", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			var o taking
			if err := json.Unmarshal(args, &o); err != nil {
				return nil, err
			}
			items, err := q.take(t, &o)
			if err != nil {
				return nil, err
			}
			return json.Marshal(items)
		}},
		{Name: "audit", ReadOnly: true, Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			_, err := q.readAll(t, uint64(len(args)))
			return nil, err
		}},
	}
}

// call runs a procedure at the home of a queue.
func (q *queues) call(ctx context.Context, db *txn.DB, queue int, name string, o any) ([]byte, error) {
	args, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return db.Call(ctx, server.HomeOf(db, q.item.tab, q.key(queue, 1)), name, args)
}

// readAll reads all queues. Items of one producer are in order, and those of the index
// are the same.
func (q *queues) readAll(t *txn.Txn, how uint64) (all []found, err error) {
	for queue := range q.n {
		items, err := q.front(t, queue, 0, how)
		if err != nil {
			return nil, err
		}
		if err := q.inOrder(items); err != nil {
			return nil, err
		}
		all = append(all, items...)
	}
	if q.item.byItem == nil {
		return all, nil
	}
	var want, got []int64
	for _, x := range all {
		want = append(want, x.ID.pack(x.Revision))
	}
	entries, err := t.QueueScan(q.item.byItem, tables.First, tables.Last, 0).Entries()
	for _, e := range entries {
		got = append(got, e.Row.Int(q.item.byItem.Field("id")))
	}
	slices.Sort(want)
	if slices.Sort(got); err == nil && !slices.Equal(want, got) {
		err = fmt.Errorf("%w: the index has %v, the queues %v", errItem, got, want)
	}
	return all, err
}

// inOrder checks that the items of each producer are in the order in which it has
// inserted them, but for those that may have arrived late.
func (q *queues) inOrder(items []found) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := map[itemID]found{}
	for _, x := range items {
		if q.doubtful[x.ID] {
			continue
		}
		who := itemID{Producer: x.ID.Producer, Number: int64(x.Queue)}
		if before, ok := last[who]; ok && before.ID.Number >= x.ID.Number {
			return fmt.Errorf("%w: %+v comes before %+v", errItem, before, x)
		}
		last[who] = x
	}
	return nil
}

// populate makes nothing: queues begin empty.
func (q *queues) populate(*setup, *cluster) error { return nil }

// timePlace is the present time as the first of four places that no other client uses.
func timePlace(client int) uint64 {
	return uint64(time.Since(sim.Date).Microseconds())<<8 | uint64(client)<<2
}
