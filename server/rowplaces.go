package server

import (
	"context"
	"errors"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// Entries of a twin say where their rows are. A shipment brings the place of a row with its key: see
// ship.go. Entries that a client has loaded, and those that were made when the twin was built, have none,
// for what a client says of it would prove nothing. So when loading ends, and when a twin that was built
// comes into use, the data server that has the twin asks the one that has the rows.
//
// An answer is of some moment between the question and the answer. The entry is the same at both, if its
// header is, and it was not locked. So the key had one row all the time, and that one is where the answer
// says: a transaction that deletes the row has locked the entry before, or has removed it. Nothing is
// locked, and nobody waits for either data server. If a question fails it is asked again. Nothing but the
// rounds of readers depends on when it is answered.
//
// With a log entries have no places: a data server that is started again has its rows elsewhere.

// placing gets the places that the entries of a twin in a partition lack.
type placing struct {
	p    *partition
	twin *tables.Index
	ix   index.Hinted
	from placement.Partition // has the rows
	left *entries

	// Of some entries without places:
	keys   []uint64
	heads  []block.Header
	places []uint64

	req []byte
}

// Bounds of the rest before a question is asked again.
const (
	placesAgainAfter = time.Millisecond
	placesAgainMost  = time.Second
)

// fetchPlaces gets, in the background, the places that entries of a twin here lack. It does nothing if the
// index is not such a twin.
func (s *Server) fetchPlaces(twin *tables.Index) {
	if !twin.IsTwin() || twin.Table.Def().Twin != tables.TwinNext || twin.Strings || twin.IsBuilding() || twin.IsWithdrawn() || s.durable != nil {
		return
	}
	for _, p := range s.parts.here {
		if pl := p.placing(twin); pl != nil {
			s.workers.background(func() {
				n, err := pl.all()
				s.log.Debug("entries of a twin have places", "partition", p.id, "index", twin.Name, "entries", n, "error", err)
			})
		}
	}
}

// placing returns nil if entries of the twin cannot have places.
func (p *partition) placing(twin *tables.Index) *placing {
	ix, ok := p.index(twin.ID).(index.Hinted)
	if !ok {
		return nil
	}
	of := placement.Partition(len(p.srv.parts.of))
	return &placing{p: p, twin: twin, ix: ix, from: (p.id + of - 1) % of, left: newEntries(ix, twin, wire.MaxPlaces)}
}

// all goes through all entries once. It returns how many have got places.
func (pl *placing) all() (n int, err error) {
	ws := &pl.p.srv.workers
	for {
		if more, err := pl.collect(); err != nil || !more {
			return n, err
		}
		if len(pl.keys) == 0 {
			continue
		}
		for rest := placesAgainAfter; ; rest = min(2*rest, placesAgainMost) {
			err := pl.ask()
			if err == nil {
				break
			}
			if v := (verdict{}); errors.As(err, &v) && v.code == wire.Bad {
				return n, err
			}
			if ws.rest(rest) != nil {
				return n, err
			}
		}
		n += pl.set()
	}
}

// collect looks at the next entries for those without places. It returns false at the end.
func (pl *placing) collect() (more bool, err error) {
	pl.keys, pl.heads = pl.keys[:0], pl.heads[:0]
	found, err := pl.left.next(pl.p.srv.workers.ctx)
	for i := range found {
		if e := &found[i]; e.Row[0] == 0 {
			pl.keys, pl.heads = append(pl.keys, e.Key.Num), append(pl.heads, e.Header)
		}
	}
	return len(found) > 0, err
}

// ask asks where the rows are.
func (pl *placing) ask() error {
	s, q := pl.p.srv, wire.PlacesRequest{Partition: pl.from, Index: uint16(pl.twin.ID), Keys: pl.keys}
	server := s.parts.placement.At(pl.from)
	if server == s.parts.self {
		var v verdict
		if pl.places, v = s.placesOf(&q, pl.places); !v.ok() {
			return v
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(s.workers.ctx, peerTimeout)
	defer cancel()
	l, err := s.peers[server].link(ctx)
	if err != nil {
		return err
	}
	pl.req = q.Append(pl.req[:0])
	resp, err := rdma.Call(ctx, l.conn, pl.req, l.resp)
	if err != nil {
		l.drop()
		return err
	}
	l.resp = resp
	defer l.release()
	d := wire.NewDecoder(resp)
	if v := verdictIn(&d); !v.ok() {
		return v
	}
	pl.places, err = d.Places(pl.places, len(pl.keys))
	return err
}

// set gives the entries that have not changed their places, and returns how many.
func (pl *placing) set() (n int) {
	pl.p.mu.Lock()
	defer pl.p.mu.Unlock()
	for i, place := range pl.places {
		if place != 0 && pl.ix.SetHint(index.Num(pl.keys[i]), pl.heads[i], place) {
			n++
		}
	}
	return n
}

// handlePlaces answers where rows are.
func (s *Server) handlePlaces(r *rdma.Request, w *work, d *wire.Decoder) {
	if w.places.Decode(d) != nil {
		s.answers.refuse(r, "malformed question about places")
		return
	}
	places, v := s.placesOf(&w.places, w.buf)
	w.buf = places[:0]
	if w.resp = appendVerdict(w.resp[:0], v); v.ok() {
		w.resp = wire.AppendPlaces(w.resp, places)
	}
	s.answers.reply(r, w.resp)
}

// placesOf returns the addresses of the rows of keys, 0 for those that are not there or are locked. The
// result is in the memory of dst.
func (s *Server) placesOf(q *wire.PlacesRequest, dst []uint64) (places []uint64, v verdict) {
	places = dst[:0]
	p := s.parts.get(q.Partition)
	if p == nil || s.durable != nil {
		return places, verdict{code: wire.Bad, text: "places of rows that are not here, or do not stay"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.serves(); !v.ok() {
		return places, v
	}
	has := p.has.Load()
	if int(q.Index) >= len(has.indexes) {
		return places, conflict(exec.CauseCatalog) // not yet
	}
	rows := has.indexes[has.catalog.Indexes[q.Index].Table.Primary().ID]
	if rows.def.Strings {
		return places, verdict{code: wire.Bad, text: "places of rows that move"}
	}
	for _, k := range q.Keys {
		places = append(places, p.writer.rowAt(rows, index.Num(k)))
	}
	return places, verdict{}
}
