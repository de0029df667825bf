package server

import (
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// onlyPartition is the view of a procedure that stays in its partition.
type onlyPartition struct{ p *partition }

// Index implements exec.Local.
func (o onlyPartition) Index(part placement.Partition, ix int) index.Server {
	if part != o.p.id {
		return nil
	}
	return o.p.index(ix)
}

// Clock implements exec.Local.
func (o onlyPartition) Clock(part placement.Partition) (time.Duration, bool) {
	return o.p.clock.Last(), part == o.p.id
}

// allPartitions is the view of a procedure that leaves its partition.
type allPartitions struct {
	parts   *partitions
	running *clock.Running
}

// Index implements exec.Local.
func (a allPartitions) Index(part placement.Partition, ix int) index.Server {
	if p := a.parts.get(part); p != nil {
		return p.index(ix)
	}
	return nil
}

// Clock implements exec.Local.
func (a allPartitions) Clock(part placement.Partition) (time.Duration, bool) {
	return a.running.Last(), a.parts.get(part) != nil
}

// work has the buffers of one request.
type work struct {
	commit   wire.Commit
	call     wire.Call
	request  request
	reads    []wire.Read
	messages []twophase.Message
	get      index.GetResult
	scan     index.ScanResult
	shipping wire.Shipping
	places   wire.PlacesRequest
	buf      []uint64
	resp     []byte
	batch    batch
}

// handle serves one request. It must not wait: a request that may wait moves to
// a goroutine.
func (s *Server) handle(r *rdma.Request) {
	if len(r.Body) == 0 || wire.Op(r.Body[0]) != wire.OpCopy { // an idle server takes the steps of copies, too
		s.pace.request()
	}
	if len(r.Body) == 0 {
		s.answers.refuse(r, "empty request")
		return
	}
	if s.slow.known.Load() > 0 && s.leavesPoller(r) {
		return
	}
	s.serve(r)
}

// serve serves a request. It waits for no other server.
func (s *Server) serve(r *rdma.Request) {
	w := s.work.Get().(*work)
	defer s.work.Put(w)
	d := wire.NewDecoder(r.Body[1:])
	op := wire.Op(r.Body[0])
	if !s.permissions.permit(r, op) {
		return
	}
	switch op {
	case wire.OpHello:
		s.greet(r)
	case wire.OpRead:
		s.handleRead(r, w, &d)
	case wire.OpCommit:
		s.handleCommit(r, w, &d)
	case wire.OpCall:
		s.handleCall(r, w, &d)
	case wire.OpShip:
		s.handleShip(r, w)
	case wire.OpPlaces:
		s.handlePlaces(r, w, &d)
	case wire.OpPrepare, wire.OpHandOver, wire.OpDecide, wire.OpResolve:
		s.driver.handle(r, w, &d, op)
	case wire.OpOutcome:
		id, sent, how := d.ID(), d.Sent(), d.U8()
		if d.End() != nil || how > wire.OutcomeSettle {
			s.answers.refuse(r, "malformed question about an outcome")
			return
		}
		if s.oneSided.has(id.Client, r.From) {
			s.workers.background(func() {
				s.oneSided.settle(id.Client)
				s.question(id, sent, how, r)
			})
			return
		}
		s.question(id, sent, how, r)
	case wire.OpGoodbye:
		s.outcomes.goodbye(d.U64(), r)
	case wire.OpValidate:
		s.handleValidate(r, w, &d)
	case wire.OpLoad:
		s.handleLoad(r, w, &d)
	case wire.OpSeal:
		s.workers.background(func() {
			v := s.seal()
			s.answers.release(answer{at: s.durable.end(), r: r, resp: v.append(nil)})
		})
	case wire.OpStats:
		s.handleStats(r, &d)
	case wire.OpLease:
		s.handleLease(r, d.Left())
	case wire.OpAdopt:
		s.handleAdopt(r, &d)
	case wire.OpReserve:
		s.handleReserve(r, w, &d)
	case wire.OpAlter:
		s.catalog.handleAlter(r, &d)
	case wire.OpCatalog:
		s.catalog.handleCatalog(r, &d)
	case wire.OpEmpty:
		s.handleEmpty(r)
	case wire.OpWriter:
		s.oneSided.handle(r, w, &d)
	case wire.OpBackup:
		s.handleBackup(r, &d)
	case wire.OpCopy:
		s.handleCopy(r, &d)
	default:
		s.answers.refuse(r, "unknown request")
	}
}

// question answers a question about the outcome of a transaction.
func (s *Server) question(id wire.ID, sent wire.Sent, how byte, r *rdma.Request) {
	if !s.outcomes.question(id, sent, how, r) {
		s.permissions.session.Add(1)
	}
}

func (s *Server) seal() verdict {
	if s.durable != nil {
		r := redo.Record{Kind: redo.Sealed}
		if _, err := s.durable.log.AppendWait(r.Append(nil)); err != nil {
			return logVerdict(err)
		}
	}
	for _, ix := range s.catalog.Load().Indexes {
		s.fetchPlaces(ix)
	}
	for _, p := range s.parts.here {
		start := time.Now()
		p.seal()
		rows := uint64(0)
		for _, ix := range p.has.Load().indexes {
			rows += ix.Stats().Rows
		}
		s.log.Info("partition sealed", "partition", p.id, "rows", rows, "used_bytes", p.arena.Used(), "took", time.Since(start))
	}
	return verdict{}
}

// handleEmpty passes a client's request to empty the cluster to the process that has
// started all data servers. That process then ends this one.
func (s *Server) handleEmpty(r *rdma.Request) {
	if s.cfg.hosted.Empty == nil {
		s.answers.refuse(r, "no other process has started this data server; stop all data servers and start them again")
		return
	}
	if err := s.cfg.hosted.Empty(); err != nil {
		s.answers.refuse(r, err.Error())
		return
	}
	s.log.Info("a client empties the cluster", "client", r.From.String())
	s.answers.reply(r, []byte{byte(wire.OK)})
}

// handleRead answers lookups and scans without the executor, because indexes
// allow readers concurrent with their one mutator. It answers them in order, as
// many as fit a message and at least one. The client asks again for the others.
func (s *Server) handleRead(r *rdma.Request, w *work, d *wire.Decoder) {
	reads, err := wire.DecodeReads(d, w.reads)
	if err != nil {
		s.answers.refuse(r, err.Error())
		return
	}
	w.reads = reads
	w.resp = append(w.resp[:0], byte(wire.OK))
	lookups, scans := uint64(0), uint64(0)
	for i := range reads {
		if !s.permissions.permitTable(r, int(reads[i].Index)) {
			return
		}
		fits := len(w.resp)
		if v := s.read(w, &reads[i], i == 0); !v.ok() {
			s.answers.reply(r, v.append(nil))
			return
		}
		if len(w.resp) > rdma.MaxMessageBytes {
			if i == 0 {
				s.answers.reply(r, tooLarge("answer to a read", len(w.resp), rdma.MaxMessageBytes).append(nil))
				return
			}
			w.resp = w.resp[:fits]
			break
		}
		if reads[i].Scan {
			scans++
		} else {
			lookups++
		}
	}
	if lookups > 0 {
		s.counters.lookups.Add(lookups)
	}
	if scans > 0 {
		s.counters.scans.Add(scans)
	}
	s.answers.reply(r, w.resp)
}

// read appends the answer to one lookup or scan, which may make the answer
// larger than a message. If it is the first of the message, a scan then ends at a lower limit, so
// that the client can go on after its rows. An index that is not here may be one of a version of the
// catalogue that has not come yet.
func (s *Server) read(w *work, rd *wire.Read, first bool) verdict {
	p := s.parts.get(rd.Partition)
	if p == nil {
		return verdict{code: wire.Bad, text: "no such partition here"}
	}
	has := p.has.Load()
	if int(rd.Index) >= len(has.indexes) {
		return conflict(exec.CauseCatalog)
	}
	srv := has.indexes[rd.Index]
	ix := srv.def
	if rd.Strings != ix.Strings {
		return verdict{code: wire.Bad, text: "read of " + ix.Name + " with a key of another kind"}
	}
	if rd.GaveUp {
		srv.demand.Add(1)
		srv.gaveUp.Add(1)
	}
	if rd.At != 0 && p.ticks.closedTick() < rd.At {
		return verdict{code: wire.Bad, text: "read at a tick that is not closed"}
	}
	if !rd.Scan {
		if rd.At == 0 {
			srv.Lookup(rd.Lo, &w.get)
		} else if srv.LookupAt(rd.Lo, rd.At, &w.get); p.floor() > rd.At {
			w.get.Status = index.Gone
		}
		w.resp = wire.AppendGet(w.resp, &w.get)
		return verdict{}
	}
	ordered, ok := srv.Server.(index.OrderedServer)
	if !ok {
		return verdict{code: wire.Bad, text: "scan of a hash index"}
	}
	room, begin := rdma.MaxMessageBytes-len(w.resp), len(w.resp)
	for limit := min(int(rd.Limit), scanRows(ix, srv.Server, room)); ; {
		if rd.At == 0 {
			w.buf = ordered.Scan(rd.Lo, rd.Hi, limit, &w.scan, w.buf)
		} else if w.buf = ordered.ScanAt(rd.Lo, rd.Hi, limit, rd.At, &w.scan, w.buf); p.floor() > rd.At {
			w.scan.Status = index.Gone
		}
		rows := len(w.scan.Entries)
		if ix.Strings {
			cutToFit(&w.scan, room)
		}
		w.resp = wire.AppendScan(w.resp[:begin], &w.scan, ix.Strings)
		if len(w.resp) <= rdma.MaxMessageBytes || limit == 1 || !first {
			return verdict{}
		}
		limit = max(rows/2, 1)
	}
}

// proofBytes is the size of the proofs of an entry that is alone in its leaf.
const proofBytes = 2 * 16

// scanRows returns how many rows of an index to put into an answer of room
// bytes. If rows have one size, that many rows fit, with the proofs of as many
// leaves. A range may have more leaves, because some have no rows: then they may
// not fit. If rows vary in size, it is about twice the number that fits if rows
// have average size, and cutToFit drops the rest. The client asks again for the
// others.
func scanRows(ix *tables.Index, srv index.Server, room int) int {
	row := ix.RowBytes
	if ix.Strings {
		st := srv.Stats()
		row = int(st.RowBytes / (2 * (st.Rows + 1)))
	}
	return max((room-4096)/(row+wire.EntryBytes+proofBytes), 1)
}

// cutToFit drops the last rows of an answer that is larger than room bytes, but
// never the first row. The proofs of dropped rows are harmless.
func cutToFit(r *index.ScanResult, room int) {
	room -= 64 + 16*(len(r.Quick)+len(r.Gaps))
	for i := range r.Entries {
		e := &r.Entries[i]
		if room -= wire.EntryBytes + len(e.Key.Str) + len(e.Row)*mem.WordBytes; room < 0 && i > 0 {
			r.Entries, r.More = r.Entries[:i], true
			return
		}
	}
}

func (s *Server) handleCommit(r *rdma.Request, w *work, d *wire.Decoder) {
	err := w.commit.Decode(d)
	if err == nil {
		err = d.End()
	}
	if err != nil || len(w.commit.Parts) == 0 {
		s.answers.refuse(r, "malformed commit")
		return
	}
	if !s.permissions.permitWrites(r, &w.commit) || !s.permissions.permitTurn(r, &w.commit.Turn) {
		return
	}
	id := w.commit.ID
	if !s.outcomes.begin(id, w.commit.Sent, r) {
		return
	}
	if v := s.clocks.saw(w.commit.Seen); !v.ok() {
		s.answers.release(answer{id: id, r: r, resp: v.append(nil)})
		return
	}
	var p *partition
	if len(w.commit.Parts) == 1 {
		p = s.parts.get(w.commit.Parts[0].Partition)
	}
	if p != nil { // the transaction stays in one partition
		q := &w.request
		*q = request{id: id, r: r, part: &w.commit.Parts[0], read: p.firstRead(&w.commit.Parts[0]), age: w.commit.Age, wait: w.commit.Turn.Wait, turn: w.commit.Turn, result: w.resp}
		if p.requests.start(q, r.Body[1:]) {
			p.requests.answer(q)
		}
		w.resp = q.result
		return
	}
	t := s.driver.tasks.Get().(*task)
	t.r, t.body = r, append(t.body[:0], r.Body[1:]...)
	s.workers.background(t.serve)
}

// handleValidate tells whether the proofs of this server's share of a
// transaction hold at this moment. Nothing is locked or remembered.
func (s *Server) handleValidate(r *rdma.Request, w *work, d *wire.Decoder) {
	err := w.commit.Decode(d)
	if err == nil {
		err = d.End()
	}
	if err != nil {
		s.answers.refuse(r, err.Error())
		return
	}
	var sh share
	sh.of(&s.parts, &w.commit)
	if len(sh.at) == 0 || sh.twice() {
		s.answers.refuse(r, "validation of nothing that is here, or of two parts of one partition")
		return
	}
	sh.lock()
	v := sh.validate()
	sh.unlock()
	w.resp = wire.AppendMessages(appendVerdict(w.resp[:0], v), nil)
	s.answers.release(answer{at: s.durable.end(), r: r, resp: w.resp, peer: true}) // a refusal at the home server rests on these reads
}

func (s *Server) handleLoad(r *rdma.Request, w *work, d *wire.Decoder) {
	part, ix, version := d.Partition(), int(d.U16()), int(d.U32())
	rows := d.Rest()
	p := s.parts.get(part)
	if p == nil || d.Err() != nil {
		s.answers.refuse(r, "load into a partition that is not here")
		return
	}
	if !s.permissions.permitTable(r, ix) {
		return
	}
	w.resp = p.load(ix, version, rows).append(w.resp[:0])
	s.answers.release(answer{at: s.durable.end(), r: r, resp: w.resp})
}

// handleCall runs a procedure. Most procedures stay in their partition and run
// there, perhaps after a wait. One that leaves its partition runs again from
// the start in a goroutine, which may wait for other servers.
func (s *Server) handleCall(r *rdma.Request, w *work, d *wire.Decoder) {
	if err := w.call.Decode(d); err != nil {
		s.answers.refuse(r, err.Error())
		return
	}
	id := w.call.ID
	proc := s.procs[string(w.call.Procedure)]
	p := s.parts.get(w.call.Partition)
	if proc == nil || p == nil {
		v := verdict{code: wire.NoProcedure, text: string(w.call.Procedure)}
		if p == nil {
			v = verdict{code: wire.Bad, text: "the procedure's partition is not here"}
		}
		s.answers.reply(r, v.append(nil))
		return
	}
	if !s.outcomes.begin(id, w.call.Sent, r) {
		return
	}
	if v := s.clocks.saw(w.call.Seen); !v.ok() && !proc.ReadOnly { // what only reads gets no tick
		s.answers.release(answer{id: id, r: r, resp: v.append(nil)})
		return
	}
	s.counters.calls.Add(1)
	q := &w.request
	*q = request{id: id, r: r, proc: proc, args: w.call.Args, wait: w.call.Wait, deadline: deadline(w.call.Left), result: w.resp}
	if p.requests.start(q, r.Body[1:]) {
		p.requests.answer(q)
	}
	w.resp = q.result
}

// handleReserve gives a session a turn in a partition, when it comes, or ends
// what the session has there.
func (s *Server) handleReserve(r *rdma.Request, w *work, d *wire.Decoder) {
	t := &w.commit.Turn
	session, part, err := t.DecodeReserve(d)
	p := s.parts.get(part)
	if err != nil || p == nil {
		s.answers.refuse(r, "malformed request for a turn, or for a partition that is not here")
		return
	}
	if !s.permissions.permitTurn(r, t) {
		return
	}
	p.requests.lines.release(session, t.Again)
	if t.Wait == 0 {
		s.answers.reply(r, []byte{byte(wire.OK)})
		return
	}
	q := &request{r: r, bare: true, cause: exec.CauseRow}
	c := &claim{
		session: session, peer: r.Peer, names: slices.Clone(t.Rows), whole: t.Whole && t.Losses >= wholeLosses,
		lost: true, lease: leaseOfSeveral(t.Losses), ends: clock.Fast() + t.Wait, q: q,
	}
	p.mu.Lock()
	if !p.requests.lines.enterAgain(c, t.Again) {
		p.requests.refuse(q, conflict(q.cause))
		p.requests.over = append(p.requests.over, q)
	}
	p.unlock()
}
