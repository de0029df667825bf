package exec

import (
	"fmt"
	"time"

	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// flush performs all queued reads together: the one-sided ones in shared
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
	if t.err == nil && t.s != nil && t.s.kept.on {
		t.s.keepReads(t)
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

// flush fills in the results of a transaction's queued reads.
func (s *Session) flush(t *Txn) error {
	defer s.untouchAll() // also if a link fails before the first round
	if t.at != 0 {
		if err := s.enter(t); err != nil {
			return err
		}
	}
	for r := range t.queued {
		if r.hasAnswer() || s.byRPC(r.index().Ordered) {
			continue
		}
		p, err := s.pool(t.ctx, r.index().ID, r.part())
		if err != nil {
			return err
		}
		if err := s.activate(t, r.start(t, p), p); err != nil {
			return err
		}
	}
	if len(s.active) > 0 {
		if err := s.rounds(t.ctx); err != nil {
			return err
		}
	}
	if t.at != 0 {
		if err := s.leave(t); err != nil {
			return err
		}
	}
	return s.collect(t)
}

// activate adds an operation to the next rounds, and runs the rounds when there
// are enough operations.
func (s *Session) activate(t *Txn, op index.Op, p *opPool) error {
	l, err := s.join(t.ctx, p.server)
	if err != nil {
		return err
	}
	s.active = append(s.active, activeOp{op, l})
	if len(s.active) >= maxOpsARound {
		return s.rounds(t.ctx)
	}
	return nil
}

func (s *Session) byRPC(ordered bool) bool { return ordered && s.db.cfg.Reads == OrderedByRPC }

// collect takes the results of the operations. It sends the operations that fell
// back, and those that always go by RPC, to the servers.
func (s *Session) collect(t *Txn) error {
	rest := 0
	for r := range t.queued {
		if !r.take(t) {
			rest++
		}
	}
	if rest == 0 {
		return nil
	}
	var patience time.Duration
	for again := true; again; {
		for server := range placement.Server(len(s.db.servers)) {
			for more := true; more; {
				var err error
				if more, err = s.ask(t, server); err != nil {
					return err
				}
			}
		}
		err := s.askRest(t)
		if err != nil || t.at == 0 {
			return err
		}
		if again, err = s.reopen(t, &patience); err != nil {
			return err
		}
	}
	return nil
}

// askRest continues scans of which a server has sent only the part that fitted its
// answer.
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
	l, err := s.link(t.ctx, s.db.placement.At(sub.part))
	if err != nil {
		return err
	}
	s.req = wire.AppendReads(s.req[:0], []wire.Read{{
		Partition: sub.part, Index: uint16(sc.ix.ID), Scan: true, Strings: sc.ix.Strings,
		Lo: after(sub.own.Entries[have-1].Key, sc.ix.Strings), Hi: sc.hi, Limit: uint32(t.scanLimit(sc) - have), At: t.at,
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
	sub.own.Rests = max(sub.own.Rests, page.Rests)
	sub.own.More = page.More && len(page.Entries) > 0
	if page.Status == index.Locked || page.Status == index.Gone {
		sub.own.Status = page.Status
	}
	return nil
}

// ask sends one RPC with the reads that a server must answer, as many as fit a
// message. The server answers in order as many as fit its message. more reports that
// reads remain for another RPC.
func (s *Session) ask(t *Txn, server placement.Server) (more bool, err error) {
	s.reads = s.reads[:0]
	for r := range t.queued {
		if len(s.reads) < wire.MaxReads && s.isAsked(server, r) {
			s.reads = append(s.reads, r.request(t))
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

// isAsked reports whether a read still needs an answer from a server.
func (s *Session) isAsked(server placement.Server, r partRead) bool {
	return !r.hasAnswer() && s.db.placement.At(r.part()) == server
}

// takeAnswers decodes answers in the order in which ask listed the reads: at
// least one, and perhaps not all.
func (s *Session) takeAnswers(t *Txn, server placement.Server, resp []byte) error {
	d, left := wire.NewDecoder(resp), len(s.reads)
	next := func() bool {
		take := left > 0 && (d.Left() > 0 || left == len(s.reads))
		if take {
			left--
		}
		return take
	}
	for r := range t.queued {
		if s.isAsked(server, r) && next() {
			r.decode(&d)
		}
	}
	if err := d.End(); err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrProtocol, err)
	}
	return nil
}
