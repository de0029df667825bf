package server

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// takeRecords makes effects of the machine's records, except those that are logged with
// the effect End. The caller holds protocol.mu.
func (b *batch) takeRecords(p *partition) {
	for i := range b.out.Records {
		r := &b.out.Records[i]
		if !slices.ContainsFunc(b.out.Effects, func(e twophase.Effect) bool { return e.Kind == twophase.End && e.ID == r.ID }) {
			rec := *r
			b.effects = append(b.effects, effect{record: &rec, prepared: p.protocol.prepared[r.ID], origin: p.protocol.origins[r.ID]})
		}
	}
}

// decided returns the machine's record of a decision, nil if there is none.
func (b *batch) decided(id twophase.ID) *twophase.Record {
	for i := range b.out.Records {
		if r := b.out.Records[i]; r.Kind == twophase.Decided && r.ID == id {
			return &r
		}
	}
	return nil
}

// stepRecord returns the record of a step of the commit protocol, with the share
// if the step is that it is prepared.
func stepRecord(part placement.Partition, step *twophase.Record, t *prepared, o origin) redo.Record {
	r := redo.Record{Session: o.id, Result: o.result, Partition: part, Step: *step}
	switch step.Kind {
	case twophase.Prepared:
		r.Kind = redo.Prepared
		if t != nil {
			r.Parts = []redo.Part{{Partition: part, Reads: t.reads, Writes: t.writes}}
		}
	case twophase.Decided:
		r.Kind = redo.Decided
	default:
		r.Kind = redo.Departed
	}
	return r
}

// settle waits until the steps that run now have ended. What they have to log is
// then in the log, and applied, or is a debt.
func (sd *protocol) settle() {
	sd.mu.Lock()
	running := sd.steps
	sd.steps = &sync.WaitGroup{}
	sd.mu.Unlock()
	running.Wait()
}

// exportMost is how many transactions export reads before others may use the machine.
const exportMost = 64

// export returns what a recovery must know of a partition's side of the commit
// protocol, as records of the log. It calls rest with protocol.mu free, again and
// again: what other goroutines change then is in the log after the checkpoint's
// position.
func (sd *protocol) export(part placement.Partition, rest func()) (all []redo.Record) {
	sd.mu.Lock()
	defer sd.mu.Unlock()
	pause := func() {
		sd.mu.Unlock()
		defer sd.mu.Lock()
		rest()
	}
	for _, step := range sd.machine.Departures() {
		all = append(all, stepRecord(part, &step, nil, origin{}))
	}
	ids := sd.machine.IDs(exportMost, pause)
	sd.mu.Unlock()
	slices.SortFunc(ids, twophase.ID.Compare) // so that a simulation can be repeated
	sd.mu.Lock()
	for i, id := range ids {
		if i%exportMost == 0 {
			pause()
		}
		step := sd.machine.Export(id)
		if step.Kind == 0 {
			continue
		}
		var t *prepared
		var o origin
		if step.Kind == twophase.Prepared {
			t, o = sd.prepared[id], sd.origins[id]
		}
		all = append(all, stepRecord(part, &step, t, o))
	}
	return all
}

// sessionsInDoubt adds the transactions of sessions that are in doubt here.
func (sd *protocol) sessionsInDoubt(to map[wire.ID]struct{}) {
	sd.mu.Lock()
	defer sd.mu.Unlock()
	n := 0
	for id, o := range sd.origins { // which may change while the mutex is free
		if sd.machine.Doubts(id) {
			to[o.id] = struct{}{}
		}
		if n++; n%exportMost == 0 {
			sd.mu.Unlock()
			runtime.Gosched()
			sd.mu.Lock()
		}
	}
}

// owing returns the answer to a request that rests on a record which the log does not
// have yet: there is no room for it, or there never will be.
func (d *durable) owing() verdict {
	if err := d.log.Err(); err != nil {
		return logVerdict(err)
	}
	return verdict{code: wire.NoSpace, text: "the log has no room"}
}

// owes reports whether the log has no room yet for what a message rests on.
func (d *durable) owes(ms []twophase.Message) bool {
	if d == nil {
		return false
	}
	return slices.ContainsFunc(ms, func(m twophase.Message) bool {
		p := d.s.parts.at(m.From)
		if p == nil || !m.Rests() {
			return false
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.records.debts) > 0
	})
}

// awaitLog waits until messages of this server's parties may leave. It returns
// false if they must not.
func (d *durable) awaitLog(ms []twophase.Message) bool {
	if d == nil {
		return true
	}
	return !d.owes(ms) && d.wait(d.s.workers.ctx, d.end()) == nil
}

// withhold returns the messages that may leave now. The others are posted when
// what they rest on is durable and the server then has its place, or are dropped:
// their machines repeat them.
func (d *durable) withhold(ms []twophase.Message) (now []twophase.Message) {
	at := d.log.End()
	if at <= d.safe() && d.mayAnswer() && !d.owes(ms) {
		return ms
	}
	var later []twophase.Message
	for _, m := range ms {
		if m.Rests() {
			later = append(later, m)
		} else {
			now = append(now, m)
		}
	}
	if len(later) > 0 && !d.owes(later) {
		d.hold(answer{at: at, do: func(durable bool) {
			if durable {
				d.s.driver.postNow(later)
			}
		}})
	}
	return now
}

// doubts is what the log has of a partition's side of the commit protocol.
type doubts struct {
	steps   []twophase.Record
	shares  map[twophase.ID]redo.Part // in doubt
	before  map[twophase.ID]redo.Part // those that the checkpoint has
	origins map[twophase.ID]origin
}

// step takes a record of the commit protocol.
func (r *recovery) step(rec *redo.Record) error {
	if _, err := r.partition(rec.Partition); err != nil {
		return err
	}
	d := r.doubts[rec.Partition]
	if d == nil {
		d = &doubts{shares: map[twophase.ID]redo.Part{}, origins: map[twophase.ID]origin{}}
		r.doubts[rec.Partition] = d
	}
	step := rec.Step
	d.steps = append(d.steps, step)
	r.tick = max(r.tick, step.Tick)
	switch rec.Kind {
	case redo.Prepared:
		if rec.Session != (wire.ID{}) {
			d.origins[step.ID] = origin{id: rec.Session, result: slices.Clone(rec.Result)}
			r.s.outcomes.doubt(rec.Session)
		}
		if len(rec.Parts) == 1 {
			d.shares[step.ID] = keepPart(&rec.Parts[0])
		}
	case redo.Decided:
		return r.decided(rec, d)
	}
	return nil
}

// steps takes what a checkpoint has of a partition's side of the commit protocol.
func (r *recovery) steps(part placement.Partition, b []byte) error {
	return redo.Each(b, func(rec *redo.Record) error {
		if rec.Step.Kind == 0 || rec.Kind == redo.Commit || rec.Partition != part {
			return fmt.Errorf("%w: a record of the commit protocol of partition %d is %v of partition %d", ErrRecovery, part, rec.Kind, rec.Partition)
		}
		return r.step(rec)
	})
}

// decided applies what a decision has committed.
func (r *recovery) decided(rec *redo.Record, d *doubts) error {
	share := d.shares[rec.Step.ID]
	delete(d.shares, rec.Step.ID)
	o := d.origins[rec.Step.ID]
	delete(d.origins, rec.Step.ID)
	switch {
	case rec.Step.Commit && rec.Session != (wire.ID{}):
		r.s.outcomes.restore(rec.Session, append([]byte{byte(wire.OK)}, rec.Result...))
	case o.id != (wire.ID{}):
		r.s.outcomes.settle(o.id, conflict(exec.CauseRemote).append(nil))
	}
	if len(rec.Parts) == 0 {
		return nil
	}
	part := rec.Parts[0]
	if len(part.Writes) == 0 {
		part.Writes = share.Writes
	}
	if _, ok := d.before[rec.Step.ID]; ok { // the log does not have the share
		r.start = max(r.start, part.CSN.Tick())
	}
	return r.part(&part, part.CSN)
}

// keepPart copies a part of a record. Locking the part again finds out which rows
// exist.
func keepPart(p *redo.Part) redo.Part {
	kept := *p
	kept.Writes = make([]wire.Write, 0, len(p.Writes))
	for _, w := range p.Writes {
		if w.Op != wire.Delete {
			w.Op = wire.Put
		}
		w.Row, w.Key = slices.Clone(w.Row), w.Key.Clone()
		kept.Writes = append(kept.Writes, w)
	}
	return kept
}

// numberBits are those of a transaction's number that count within one epoch.
const numberBits = 40

// resume restores the machines of the commit protocol, and locks again what is in
// doubt.
func (r *recovery) resume() error {
	for _, p := range r.s.parts.here {
		d := r.doubts[p.id]
		if d == nil {
			d = &doubts{}
		}
		p.protocol.machine = twophase.Restore(r.s.parts.party(p), twophase.Limits{AskAfter: askAfter}, uint64(r.s.cfg.hosted.Epoch)<<numberBits+1, d.steps)
		for id, o := range d.origins {
			p.protocol.origins[id] = o
		}
		if err := p.lockAgain(d); err != nil {
			return err
		}
	}
	return nil
}

// lockAgain locks the shares in doubt. Votes come in the order of their ticks.
func (p *partition) lockAgain(d *doubts) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	votes := map[twophase.ID]clock.Tick{}
	for i := range d.steps {
		if s := &d.steps[i]; s.Kind == twophase.Prepared {
			votes[s.ID] = s.Tick
		}
	}
	var ids []twophase.ID
	for id := range d.shares {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b twophase.ID) int { return cmp.Or(cmp.Compare(votes[a], votes[b]), a.Compare(b)) })
	if len(ids) > 0 {
		p.ticks.own = clock.Logical{} // it has no readers yet
	}
	for _, id := range ids {
		share := d.shares[id]
		p.writer.owners++
		p.ticks.own.Adopt(votes[id])
		t := &prepared{p: p, owner: p.writer.owners, vote: p.ticks.own.Vote(), reads: share.Reads, logged: true}
		held, v := p.writer.lockAll(t.owner, share.Writes, nil)
		if !v.ok() {
			return fmt.Errorf("%w: partition %d: a share in doubt cannot be locked: %s", ErrRecovery, p.id, v.text)
		}
		t.held, t.writes = held, share.Writes
		p.entered(t)
		p.protocol.prepared[id] = t
	}
	for _, t := range p.protocol.prepared {
		if t.reads {
			t.frozen = true
			p.writer.frozen++
		}
	}
	return nil
}
