package exec

import (
	"context"
	"fmt"

	"drtmx/index"
	"drtmx/internal/wire"
)

// flush performs all announced reads together: the one-sided ones in shared
// rounds, then the others by one RPC to each server.
func (t *Txn) flush() {
	if t.err == nil && t.local != nil {
		t.getLocal()
	}
	if t.err == nil && t.s != nil {
		if err := t.s.flush(t); err != nil {
			t.fail(err)
		}
	}
	from := t.flushed
	t.flushed = t.nGet
	for _, g := range t.gets[from:t.nGet] {
		if !g.done {
			g.done = true
			if t.err != nil && g.res == nil {
				g.err = t.err
				continue
			}
			g.settle()
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		if !sc.done {
			sc.done = true
			if t.err != nil {
				sc.err = t.err
				continue
			}
			sc.settle()
		}
	}
}

// maxOpsARound bounds the operations that share rounds, so that their requests
// fit a batch: a scan posts a few at a time, other reads one.
const maxOpsARound = 512

// flush fills in the results of a transaction's announced reads.
func (s *Session) flush(t *Txn) error {
	defer s.untouchAll() // also if a link fails before the first round
	if err := s.load(t); err != nil {
		return err
	}
	for _, g := range t.gets[t.flushed:t.nGet] {
		if g.done || s.byRPC(g.ix.Ordered) {
			continue
		}
		g.op = s.pool(g.ix.ID, g.part).get()
		g.op.Start(g.key)
		if err := s.activate(t, g.op, g.part); err != nil {
			return err
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		if sc.done || s.byRPC(true) {
			continue
		}
		for i := range sc.nsubs {
			sub := &sc.subs[i]
			if sub.res != nil {
				continue
			}
			sub.op = s.pool(sc.ix.ID, sub.part).scan()
			sub.op.Start(sc.lo, sc.hi, t.scanLimit(sc))
			if err := s.activate(t, sub.op, sub.part); err != nil {
				return err
			}
		}
	}
	if len(s.active) > 0 {
		if err := s.rounds(t.ctx); err != nil {
			return err
		}
	}
	return s.collect(t)
}

// activate adds an operation to the next rounds, and runs the rounds when there
// are enough operations.
func (s *Session) activate(t *Txn, op index.Op, part int) error {
	l, err := s.link(t.ctx, s.db.parts[part].server)
	if err != nil {
		return err
	}
	s.touch(l)
	s.active = append(s.active, activeOp{op, l})
	if len(s.active) >= maxOpsARound {
		return s.rounds(t.ctx)
	}
	return nil
}

func (s *Session) byRPC(ordered bool) bool { return ordered && s.db.cfg.Reads == OrderedByRPC }

// load connects to the servers that are needed, and fetches the client halves
// that are empty.
func (s *Session) load(t *Txn) error {
	for _, g := range t.gets[t.flushed:t.nGet] {
		if !g.done && !s.byRPC(g.ix.Ordered) {
			if err := s.open(t.ctx, g.ix.ID, g.part); err != nil {
				return err
			}
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		if sc.done || s.byRPC(true) {
			continue
		}
		for i := range sc.nsubs {
			if sc.subs[i].res != nil {
				continue
			}
			if err := s.open(t.ctx, sc.ix.ID, sc.subs[i].part); err != nil {
				return err
			}
		}
	}
	return s.maintain(t.ctx, t.used)
}

// open makes the pool of operations for one index in one partition.
func (s *Session) open(ctx context.Context, ix, part int) error {
	if s.pools[ix*len(s.db.parts)+part] == nil {
		if _, err := s.link(ctx, s.db.parts[part].server); err != nil {
			return err
		}
	}
	s.pool(ix, part)
	return nil
}

// collect takes the results of the operations. It asks the servers for the
// operations that fell back and for those that always go by RPC.
func (s *Session) collect(t *Txn) error {
	rest := 0
	for _, g := range t.gets[t.flushed:t.nGet] {
		if g.done {
			continue
		}
		if g.op != nil {
			if r := g.op.Result(); r.Status != index.Fallback {
				g.res = r
				continue
			}
		}
		rest++
	}
	for _, sc := range t.scans[:t.nScan] {
		if sc.done {
			continue
		}
		for i := range sc.nsubs {
			sub := &sc.subs[i]
			if sub.res == nil && sub.op != nil {
				if r := sub.op.Result(); r.Status != index.Fallback {
					sub.res = r
					continue
				}
			}
			if sub.res == nil {
				rest++
			}
		}
	}
	if rest == 0 {
		return nil
	}
	for server := range s.db.servers {
		for more := true; more; {
			var err error
			if more, err = s.ask(t, server); err != nil {
				return err
			}
		}
	}
	return s.askRest(t)
}

// askRest continues scans that a server cut to fit its answer.
func (s *Session) askRest(t *Txn) error {
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			sub := &sc.subs[i]
			for !sc.done && sub.res == &sub.own && sub.own.More && len(sub.own.Entries) > 0 && len(sub.own.Entries) < t.scanLimit(sc) {
				if err := s.askMore(t, sc, sub); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *Session) askMore(t *Txn, sc *Scan, sub *subScan) error {
	have := len(sub.own.Entries)
	l, err := s.link(t.ctx, s.db.parts[sub.part].server)
	if err != nil {
		return err
	}
	s.req = wire.AppendReads(s.req[:0], []wire.Read{{
		Partition: uint16(sub.part), Index: uint16(sc.ix.ID), Scan: true, Strings: sc.ix.Strings,
		Lo: after(sub.own.Entries[have-1].Key, sc.ix.Strings), Hi: sc.hi, Limit: uint32(t.scanLimit(sc) - have),
	}})
	resp, err := s.call(t.ctx, l, s.req)
	if err != nil {
		return err
	}
	if wire.Code(resp[0]) != wire.OK {
		return codeError(wire.Code(resp[0]), resp[1:])
	}
	var page index.ScanResult
	d := wire.NewDecoder(resp[1:])
	d.Scan(&page, nil)
	if err := d.End(); err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrProtocol, err)
	}
	sub.own.Quick = append(sub.own.Quick, page.Quick...)
	sub.own.Gaps = append(sub.own.Gaps, page.Gaps...)
	sub.own.Entries = append(sub.own.Entries, page.Entries...)
	sub.own.More = page.More && len(page.Entries) > 0
	if page.Status == index.Locked {
		sub.own.Status = index.Locked
	}
	return nil
}

// after returns a lower bound for the rows behind key: the next possible key.
// After a string of maximum length, the next string is the key with its last
// byte incremented.
func after(key index.Key, strings bool) index.Key {
	switch {
	case !strings:
		return index.Num(key.Num + 1)
	case len(key.Str) < index.MaxKeyBytes:
		return index.Str(key.Str + "\x00")
	}
	b := []byte(key.Str)
	for n := len(b); n > 0; n-- {
		if b[n-1]++; b[n-1] != 0 {
			return index.Str(string(b[:n]))
		}
	}
	return key // the highest key: a scan from it returns only this key again
}

// ask sends one RPC with the reads that a server must answer, as many as fit a
// message. The server answers them in order, as many as fit its message. more
// reports that reads are left for the next RPC.
func (s *Session) ask(t *Txn, server int) (more bool, err error) {
	s.reads = s.reads[:0]
	for _, g := range t.gets[t.flushed:t.nGet] {
		if s.unanswered(g.done, g.res == nil, g.part, server) && len(s.reads) < wire.MaxReads {
			s.reads = append(s.reads, wire.Read{Partition: uint16(g.part), Index: uint16(g.ix.ID), Strings: g.ix.Strings, Lo: g.key, GaveUp: g.op != nil})
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			if sub := &sc.subs[i]; s.unanswered(sc.done, sub.res == nil, sub.part, server) && len(s.reads) < wire.MaxReads {
				s.reads = append(s.reads, wire.Read{
					Partition: uint16(sub.part), Index: uint16(sc.ix.ID), Scan: true, Strings: sc.ix.Strings,
					Lo: sc.lo, Hi: sc.hi, Limit: uint32(t.scanLimit(sc)), GaveUp: sub.op != nil,
				})
			}
		}
	}
	if len(s.reads) == 0 {
		return false, nil
	}
	l, err := s.link(t.ctx, server)
	if err != nil {
		return false, err
	}
	s.req = wire.AppendReads(s.req[:0], s.reads)
	resp, err := s.call(t.ctx, l, s.req)
	if err != nil {
		return false, err
	}
	if wire.Code(resp[0]) != wire.OK {
		return false, codeError(wire.Code(resp[0]), resp[1:])
	}
	return true, s.takeAnswers(t, server, resp[1:])
}

// unanswered reports that a server must still answer a read of a partition.
func (s *Session) unanswered(done, open bool, part, server int) bool {
	return !done && open && s.db.parts[part].server == server
}

// takeAnswers decodes answers in the order in which ask listed the reads: at
// least one, and perhaps not all.
func (s *Session) takeAnswers(t *Txn, server int, resp []byte) error {
	d, left := wire.NewDecoder(resp), len(s.reads)
	next := func() bool {
		take := left > 0 && (d.Left() > 0 || left == len(s.reads))
		if take {
			left--
		}
		return take
	}
	for _, g := range t.gets[t.flushed:t.nGet] {
		if s.unanswered(g.done, g.res == nil, g.part, server) && next() {
			g.buf = d.Get(&g.own, g.buf)
			g.res = &g.own
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			if sub := &sc.subs[i]; s.unanswered(sc.done, sub.res == nil, sub.part, server) && next() {
				sub.buf = d.Scan(&sub.own, sub.buf)
				sub.res = &sub.own
			}
		}
	}
	if err := d.End(); err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrProtocol, err)
	}
	return nil
}

// codeError returns the error of a response code that is not a result.
func codeError(c wire.Code, text []byte) error {
	switch c {
	case wire.Exists:
		return ErrExists
	case wire.NotFound:
		return ErrNotFound
	case wire.OutOfMemory:
		return ErrOutOfMemory
	case wire.NoProcedure:
		return fmt.Errorf("%w: %s", ErrNoProcedure, text)
	case wire.Unavailable:
		return fmt.Errorf("%w: %s", ErrUnavailable, text)
	case wire.Forbidden:
		return fmt.Errorf("%w: %s", ErrForbidden, text)
	case wire.TooLarge:
		return fmt.Errorf("%w: %s", ErrTooLarge, text)
	case wire.ResultLost:
		return ErrResultLost
	}
	return fmt.Errorf("%w: code %d: %s", ErrProtocol, c, text)
}
