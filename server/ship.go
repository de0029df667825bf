package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/invariants"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// A twin of the kind TwinNext has the keys of a partition in the next one. A transaction of one
// partition that inserts or deletes keys there is *shipped*: it is prepared, as if others had a share
// of it; the next partition gets its keys, in one message with those of other transactions; and when
// the answer says that the twin has them it is committed. Its own partition cannot refuse it any more
// once it is prepared, so that the twin may have its keys before: readers of them find the rows
// locked.
//
// The shipments of a partition have numbers, and the next partition takes them in order, each once.
// What it cannot take at once, because a lock is in the way, it gets again. What it can never take, for
// lack of memory, it refuses for good: then that number is taken, and the transaction is not committed.
//
// A transaction is committed at the tick at which the next partition takes its keys. Up to then, others
// have read there that the keys are as before: at a lower tick, a Snapshot could have the transaction, and
// not what these others have done. From then on, others see in the twin that a key is gone, without the
// row: at a higher tick, a Snapshot that begins after them could still have the row. That partition adopts
// the time of the first one before, so the tick is no lower than the vote; and until the decision the vote
// keeps all ticks from it on open.
//
// A transaction that has read the gap in which a key belongs, and is prepared, has a lock there: the
// shipment waits for its decision. That transaction never waits for a shipment: it is refused where it
// meets a lock. So the two do not wait for each other.
//
// Two shipments may wait for each other, if each has read the gap in a twin in which the other one's key
// belongs: each partition ships to the next one, so there is a ring. Therefore a partition that a later
// one ships to does not let shipments wait while its own are under way: it refuses them for good, and
// they are tried again. Each ring has such a partition.
//
// A transaction of several partitions has the keys of twins among its writes: see exec.Txn.
//
// Source: HStore (Han and Jiang, SYSTOR 2023), section 4.2, log shipping. Where the paper acknowledges a
// log record and applies it later, the twin here has the keys when they are acknowledged.

// shipments are the transactions of a partition that are under way to the twins in the next one. The
// partition's mutex guards them.
type shipments struct {
	p           *partition
	to          placement.Partition
	first       uint64              // number of the first in queue
	queue       []*shipment         // in order
	working     bool                // a goroutine sends them
	incarnation uint64              // of the data server that has been sent some; 0: none has
	gone        bool                // its memory is lost, and the twins with it
	entries     []wire.ShippedEntry // memory
	atAnswer    func()              // for tests, before an answer counts

	shipped, messages uint64        // counted
	waited, underWay  time.Duration // sums: before a transaction was in a message, and until that was answered
}

// shipment is one transaction.
type shipment struct {
	t       *prepared
	entries []byte // as wire.AppendShipped encodes them
	n       int    // how many
	q       request

	since, sent time.Duration // by clock.Fast: when it was to be sent, and when it was in a message first
}

// Bounds of the shipping.
const (
	// shippedBytes bounds a message, but for one that has a single shipment.
	shippedBytes = 256 << 10
	// shipAgainAfter and shipAgainMost bound the rest before a message is sent again.
	shipAgainAfter = 50 * time.Microsecond
	shipAgainMost  = 20 * time.Millisecond
)

func (sh *shipments) init(p *partition) {
	sh.p, sh.first = p, 1
	sh.to = (p.id + 1) % placement.Partition(len(p.srv.parts.of))
}

// ships reports whether a write may change a twin in the next partition.
func (sh *shipments) ships(ix *tables.Index, w *wire.Write) bool {
	return sh.to != sh.p.id && w.Op != wire.Update && ix.ShipsTwin() && !ix.IsTwin()
}

// wants reports whether some writes may do so.
func (sh *shipments) wants(writes []wire.Write) bool {
	c := sh.p.has.Load().catalog
	for i := range writes {
		if id := int(writes[i].Index); id < len(c.Indexes) && sh.ships(c.Indexes[id], &writes[i]) {
			return true
		}
	}
	return false
}

// prepare validates and locks a part. The shipment is nil if the part needs none, or if v is no
// OK; else it is to be sent. The caller holds the mutex.
func (sh *shipments) prepare(part *wire.Part) (_ *shipment, v verdict) {
	p := sh.p
	if v := p.validate(part); !v.ok() {
		return nil, v
	}
	t, v := p.hold(part)
	if !v.ok() {
		t.drop()
		return nil, v
	}
	s, entries := &shipment{t: t}, sh.entries[:0]
	c := p.has.Load().catalog
	for i := range t.writes {
		w, h := &t.writes[i], t.held[i]
		ix := c.Indexes[w.Index]
		if gone := w.Op == wire.Delete; !sh.ships(ix, w) || h.Existed != gone {
			continue // an update, or no change of the keys
		}
		twin := ix.Table.Twin()
		e := wire.ShippedEntry{Index: uint16(twin.ID), Gone: w.Op == wire.Delete, Strings: twin.Strings, Key: w.Key}
		if key := keyOf(ix, w.Key); twin.Strings {
			e.Key = index.Str(string(key.Bytes()))
		} else {
			e.Key = index.Num(key.Num())
		}
		if !e.Gone && !w.Strings {
			e.Place = h.Addr // which rows of one size keep
		}
		entries = append(entries, e)
	}
	sh.entries, s.n = entries[:0], len(entries)
	for i := range entries {
		entries[i].Last = i == s.n-1
		s.entries = wire.AppendShipped(s.entries, &entries[i])
	}
	if len(s.entries) > wire.MaxCommitBytes {
		t.drop()
		return nil, tooLarge("keys of twins of one transaction", len(s.entries), wire.MaxCommitBytes)
	}
	if s.n == 0 {
		t.end(true, t.vote)
		return nil, verdict{}
	}
	return s, verdict{}
}

// drop releases what a part has locked that was not counted.
func (t *prepared) drop() {
	t.p.aborts-- // it is counted when the request is refused
	t.end(false, 0)
}

// send sends a shipment. The request is answered when it is committed. The caller holds the mutex.
func (sh *shipments) send(s *shipment) {
	s.since = clock.Fast()
	sh.queue = append(sh.queue, s)
	if !sh.working {
		sh.working = true
		sh.p.srv.workers.background(sh.work)
	}
}

// work sends what there is to be sent until there is nothing left.
func (sh *shipments) work() {
	var buf []byte
	for rest := shipAgainAfter; ; {
		sh.p.mu.Lock()
		var n int
		if buf, n = sh.message(buf[:0]); n == 0 {
			sh.working = false
			sh.p.mu.Unlock()
			return
		}
		gone, atAnswer := sh.gone, sh.atAnswer
		sh.p.mu.Unlock()
		var a wire.Shipped
		err := error(nil)
		if !gone {
			a, err = sh.deliver(buf)
		}
		if atAnswer != nil {
			atAnswer()
		}
		if sh.answered(&a) > 0 {
			rest = shipAgainAfter
			continue
		}
		if err != nil {
			sh.p.srv.log.Debug("keys of twins are not taken", "partition", sh.p.id, "by", sh.to, "reason", err.Error())
		}
		if sh.p.srv.workers.rest(rest) != nil {
			sh.abandon()
			return
		}
		rest = min(2*rest, shipAgainMost)
	}
}

// message makes the next message, of n shipments. The caller holds the mutex.
func (sh *shipments) message(b []byte) (_ []byte, n int) {
	s := sh.p.srv
	b = wire.AppendShipping(b, &wire.Shipping{From: sh.p.id, To: sh.to, Incarnation: s.parts.incarnation, First: sh.first, Tick: sh.p.ticks.present()})
	now := clock.Fast()
	for entries := 0; n < len(sh.queue); n++ {
		next := sh.queue[n]
		if entries += next.n; n > 0 && (len(b)+len(next.entries) > shippedBytes || entries > wire.MaxShipped) {
			break
		}
		if b = append(b, next.entries...); next.sent == 0 {
			next.sent = now
		}
	}
	return b, n
}

// deliver sends a message. The answer counts even if there is an error.
func (sh *shipments) deliver(msg []byte) (a wire.Shipped, err error) {
	s := sh.p.srv
	server := s.parts.placement.At(sh.to)
	if server == s.parts.self {
		return s.takeShipping(msg[1:], &wire.Shipping{})
	}
	ctx := s.workers.deadline()
	l, err := s.peers[server].link(ctx)
	if err != nil {
		sh.look(server)
		return a, err
	}
	switch {
	case l.replaced: // by a data server that has none of the keys
		l.release()
		sh.lose(server)
		return a, fmt.Errorf("%w: server %d replaces one whose memory is lost", errLink, server)
	case sh.incarnation == 0:
		sh.incarnation = l.incarnation
	case sh.incarnation != l.incarnation:
		l.drop() // it may be older than what has been sent: only a server that answers now proves anything
		if l, err = s.peers[server].dial(ctx); err != nil {
			return a, err
		}
		if l.incarnation != sh.incarnation {
			l.release()
			sh.lose(server)
			return a, fmt.Errorf("%w: another incarnation of server %d", errLink, server)
		}
	}
	resp, err := rdma.Call(ctx, l.conn, msg, l.resp)
	if err != nil {
		l.drop()
		sh.look(server)
		return a, err
	}
	l.resp = resp
	d := wire.NewDecoder(resp)
	v := verdictIn(&d)
	if err = a.Decode(&d); err == nil && !v.ok() {
		err = v
	}
	l.release()
	return a, err
}

// look asks whether the memory of a data server that does not answer is known to be lost.
func (sh *shipments) look(server placement.Server) {
	s := sh.p.srv
	if s.cfg.hosted.Registered == nil || sh.incarnation == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.workers.ctx, settleTimeout)
	defer cancel()
	if now, err := s.cfg.hosted.Registered(ctx, server); err == nil && now != 0 && now != sh.incarnation {
		sh.lose(server)
	}
}

// lose notes that the memory of the data server that had the twins is lost.
func (sh *shipments) lose(server placement.Server) {
	sh.p.mu.Lock()
	sh.gone = true
	sh.p.mu.Unlock()
	sh.p.srv.log.Warn("twins are lost with the memory of their data server", "partition", sh.p.id, "in", sh.to, "server", server)
}

// answered ends the shipments of which the answer says that they are taken or refused, and all if the
// twins are lost. It returns how many.
func (sh *shipments) answered(a *wire.Shipped) (n int) {
	p := sh.p
	p.mu.Lock()
	defer p.unlock()
	p.ticks.advance()
	now := clock.Fast()
	for n < len(sh.queue) && (sh.gone || sh.first <= a.UpTo) {
		s := sh.queue[n]
		tick, ok := a.TickOf(sh.first)
		if sh.gone {
			tick = p.ticks.own.Tick() // what others have seen in the twin is lost
		} else if !ok {
			break
		}
		if code, text, refused := a.Refusal(sh.first); refused && !sh.gone {
			s.t.end(false, 0)
			s.q.result = verdict{code: code, cause: exec.CauseLocked, text: text}.append(nil)
		} else {
			s.t.end(true, max(s.t.vote, tick))
			sh.shipped++
			sh.waited += max(s.sent-s.since, 0)
			sh.underWay += max(now-s.sent, 0)
		}
		p.requests.over = append(p.requests.over, &s.q)
		sh.first++
		n++
	}
	if n > 0 {
		sh.messages++
		clear(sh.queue[:n])
		if sh.queue = sh.queue[n:]; len(sh.queue) == 0 {
			sh.queue = nil
		}
		p.requests.parking.wake()
	}
	return n
}

// abandon answers what is under way when the server stops.
func (sh *shipments) abandon() {
	p := sh.p
	p.mu.Lock()
	defer p.unlock()
	for _, s := range sh.queue {
		s.q.result = verdict{code: wire.InDoubt, text: "the server stops before it knows whether a twin has the keys"}.append(nil)
		p.requests.over = append(p.requests.over, &s.q)
	}
	sh.queue, sh.working = nil, false
}

// taken are the shipments that a partition has of another one.
type taken struct {
	incarnation uint64 // of the data server of that partition
	upTo        uint64 // number of the last one
	// Of those that the other one may not know of yet, ascending:
	refused []wire.Refused
	ticks   []wire.TakenAt
	texts   int // bytes of the refusals
}

// answerBytes bounds the refusals and ticks of an answer, but for those of the last shipment.
const answerBytes = rdma.MaxMessageBytes / 2

// took notes that the next shipment is taken, or refused, at a tick.
func (ts *taken) took(tick clock.Tick) {
	ts.upTo++
	if n := len(ts.ticks); n > 0 && ts.ticks[n-1].Tick == tick {
		ts.ticks[n-1].UpTo = ts.upTo
		return
	}
	ts.ticks = append(ts.ticks, wire.TakenAt{UpTo: ts.upTo, Tick: tick})
}

// known forgets what the other one knows: of shipments before a number.
func (ts *taken) known(first uint64) {
	for len(ts.refused) > 0 && ts.refused[0].Number < first {
		ts.texts -= len(ts.refused[0].Text)
		ts.refused = ts.refused[1:]
	}
	for len(ts.ticks) > 0 && ts.ticks[0].UpTo < first {
		ts.ticks = ts.ticks[1:]
	}
}

// refuse notes why the next shipment is refused.
func (ts *taken) refuse(v verdict) {
	ts.refused = append(ts.refused, wire.Refused{Number: ts.upTo + 1, Code: v.code, Text: v.text})
	ts.texts += len(v.text)
}

// fills reports whether an answer is so long that the rest must wait for the next message.
func (ts *taken) fills() bool {
	return wire.TakenAtBytes*len(ts.ticks)+wire.RefusedBytes*len(ts.refused)+ts.texts > answerBytes
}

// handleShip takes shipments.
func (s *Server) handleShip(r *rdma.Request, w *work) {
	a, err := s.takeShipping(r.Body[1:], &w.shipping)
	w.resp = wire.AppendAnswerToShipping(appendVerdict(w.resp[:0], verdictOf(err)), &a)
	s.answers.reply(r, w.resp)
}

// takeShipping takes the shipments of a message, those that are not taken yet. The error says why it has
// not taken all. The answer counts even then, and is valid until the next call.
func (s *Server) takeShipping(msg []byte, m *wire.Shipping) (a wire.Shipped, err error) {
	d := wire.NewDecoder(msg)
	if err := m.Decode(&d); err != nil {
		return a, verdict{code: wire.Bad, text: err.Error()}
	}
	p := s.parts.get(m.To)
	if _, exists := s.parts.placement.Primary(m.From); p == nil || !exists {
		return a, verdict{code: wire.Bad, text: "keys of twins for a partition that is not here"}
	}
	p.mu.Lock()
	defer p.unlock()
	has := p.taken[m.From]
	switch {
	case has == nil:
		has = &taken{incarnation: m.Incarnation}
		if p.taken == nil {
			p.taken = map[placement.Partition]*taken{}
		}
		p.taken[m.From] = has
	case has.incarnation != m.Incarnation:
		return a, verdict{code: wire.Unavailable, text: fmt.Sprintf("partition %d has twins of another incarnation of partition %d", m.To, m.From)}
	}
	number := m.First
	if number > has.upTo+1 {
		return a, verdict{code: wire.Bad, text: fmt.Sprintf("shipment %d after %d", number, has.upTo)}
	}
	has.known(m.First)
	p.ticks.advance()
	for from, i := 0, 0; i < len(m.Entries); i++ {
		if !m.Entries[i].Last {
			continue
		}
		entries := m.Entries[from : i+1]
		from = i + 1
		if number > has.upTo {
			if has.fills() {
				break
			}
			v := p.takeShipment(entries, m.Tick)
			again := p.closesRing(m.From, v)
			switch {
			case v.code == wire.Conflict && v.cause != exec.CauseFence && !again:
				return has.answer(), v
			case !v.ok():
				if v.code == wire.Conflict && !again {
					v = verdict{code: wire.Unavailable, text: fmt.Sprintf("partition %d, which has a twin, is no longer served", p.id)}
				}
				has.refuse(v)
			}
			has.took(p.ticks.own.Tick())
		}
		number++
	}
	return has.answer(), nil
}

// answer is what the partition answers to a message. The caller holds its mutex.
func (ts *taken) answer() wire.Shipped {
	return wire.Shipped{UpTo: ts.upTo, Refused: slices.Clone(ts.refused), Ticks: slices.Clone(ts.ticks)}
}

// closesRing reports whether a shipment must not wait for what is in its way: one of the partition's
// own may be, and wait for it in turn. The caller holds the mutex.
func (p *partition) closesRing(from placement.Partition, v verdict) bool {
	return p.id < from && v.cause == exec.CauseLocked && len(p.shipments.queue) > 0
}

// takeShipment changes the twins as one transaction does, of a partition whose time is tick. The caller
// holds the mutex.
func (p *partition) takeShipment(entries []wire.ShippedEntry, tick clock.Tick) verdict {
	if v := p.serves(); !v.ok() {
		return v
	}
	if here := p.ticks.own.Tick(); here > tick+clockSkewMax || tick > here+clockSkewMax {
		return verdict{code: wire.Unavailable, text: fmt.Sprintf("the clocks of partition %d, which has a twin, and of the rows differ by more than %v", p.id, time.Duration(clockSkewMax)*clock.TickLength)}
	}
	p.ticks.adopt(tick)
	has, wr := p.has.Load(), &p.writer
	writes := wr.shipment[:0]
	for i := range entries {
		e := &entries[i]
		if int(e.Index) >= len(has.indexes) {
			return conflict(exec.CauseCatalog) // not yet
		}
		ix := has.catalog.Indexes[e.Index]
		switch {
		case !ix.IsTwin() || ix.Strings != e.Strings:
			return verdict{code: wire.Bad, text: fmt.Sprintf("a key of a twin for index %s", ix.Name)}
		case ix.IsWithdrawn():
			continue // nobody reads it any more
		}
		w := wire.Write{Index: e.Index, Op: wire.Put, Strings: e.Strings, Key: e.Key}
		if e.Gone {
			w.Op = wire.Delete
		} else {
			w.Row = binary.LittleEndian.AppendUint64(nil, e.Place)
		}
		writes = append(writes, w)
	}
	wr.shipment = writes[:0]
	wr.owners++
	held, v := wr.lockAll(wr.owners, writes, wr.held[:0])
	wr.held = held[:0]
	if v.code == wire.NotFound && invariants.Enabled {
		invariants.Failf("partition %d: a twin does not have a key that is deleted: %s", p.id, v.text)
	}
	if !v.ok() {
		return v
	}
	wr.places = true
	wr.applyAll(writes, held, p.ticks.nextCSN())
	wr.places = false
	return verdict{}
}
