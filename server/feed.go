package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"drtmx/internal/clock"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A feed is a backup without a base: a client follows the log to learn what commits.
// Its pin moves on only when the client asks for it, since the client may read a part
// of the log again. A feed ends like a backup.

const (
	// feedsMax bounds the feeds of a server. Each reads the log from the disk.
	feedsMax = 16
	// marksEvery is how many bytes the log grows between two closed ticks that the server
	// marks unasked. A feed that reads an old part of the log buffers at most what lies
	// between two marks.
	marksEvery = 1 << 20
)

// marks is the newest closed tick in the log.
type marks struct {
	sync.Mutex
	tick clock.Tick // 0: none
	at   wal.LSN    // end of its record
}

// mark appends the tick that all partitions have closed to the log, unless the log has
// it. It returns the newest closed tick in the log, and the end of the log.
func (d *durable) mark() (tick clock.Tick, at wal.LSN, v verdict) {
	tick, _, v = d.closedEverywhere()
	if !v.ok() {
		return 0, 0, v
	}
	m := &d.marks
	m.Lock()
	defer m.Unlock()
	if tick <= m.tick {
		return m.tick, d.log.End(), verdict{}
	}
	r := redo.Record{Kind: redo.Closed, Tick: tick}
	at, err := d.log.Append(r.Append(nil))
	if err != nil {
		return 0, 0, logVerdict(err)
	}
	m.tick, m.at = tick, at
	return tick, at, verdict{}
}

// markNow marks the closed tick if the log has grown since the last time.
func (d *durable) markNow() {
	m := &d.marks
	m.Lock()
	due := d.log.End() >= m.at+marksEvery
	m.Unlock()
	if due {
		_, _, _ = d.mark() // after an error, the next call tries again
	}
}

// logStart describes the commits of which the log after the newest checkpoint has
// everything.
type logStart struct {
	sync.Mutex
	// tick: the log has the record and the shares of every commit after it.
	tick clock.Tick
	// need is not 0 while shares that were prepared before the checkpoint may be in doubt:
	// they may commit after tick. They have been decided when all partitions have closed
	// need.
	need clock.Tick
}

func (l *logStart) set(tick, need clock.Tick) {
	l.Lock()
	defer l.Unlock()
	l.tick, l.need = tick, need
}

// oldestTick returns a tick such that the log has every commit after it, with all
// shares, or false if none is known yet.
func (d *durable) oldestTick() (clock.Tick, bool) {
	l := &d.start
	l.Lock()
	defer l.Unlock()
	if l.need > 0 {
		tick, _, v := d.closedEverywhere()
		if !v.ok() || tick < l.need {
			return 0, false
		}
		// Decisions made meanwhile have adopted the ticks of their commits.
		l.tick, l.need = max(l.tick, d.s.parts.highestTick()), 0
	}
	return l.tick, true
}

// settling waits beside a checkpoint until the shares from before it are decided, so
// that logStart.tick is as low as possible.
type settling struct {
	tick   chan clock.Tick
	cancel context.CancelFunc
}

func (d *durable) settling(ctx context.Context) *settling {
	ctx, cancel := context.WithCancel(ctx)
	w := &settling{tick: make(chan clock.Tick, 1), cancel: cancel}
	d.s.workers.background(func() {
		if d.awaitSettled(ctx) == nil {
			w.tick <- d.s.parts.highestTick()
		}
	})
	return w
}

// cut notes in l that the log begins at the checkpoint, whose present tick is given.
func (w *settling) cut(l *logStart, present clock.Tick) {
	select {
	case tick := <-w.tick:
		l.set(tick, 0)
	default:
		l.set(present, present)
	}
}

// beginFeed begins a feed of the log from a position on, or from the start of the log
// if that is later.
func (d *durable) beginFeed(r *rdma.Request, from wal.LSN) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it does not fail
	b := &backup{s: d.s, id: binary.LittleEndian.Uint64(id[:]), peer: r.Peer, cancel: func() {}, made: make(chan struct{}), feed: true}
	close(b.made)
	end := d.log.End()
	first, ok := d.backups.begin(b, func() wal.LSN { return max(min(from, end), d.log.First()) })
	if !ok {
		d.s.answers.refuse(r, fmt.Sprintf("%d feeds of changes are under way, the limit", feedsMax))
		return
	}
	d.s.log.Info("feed of changes begun", "feed", b.id, "log", uint64(b.pin))
	pinned := wire.BackupPinned{BackupBegun: b.beginAnswer(), First: uint64(first), End: uint64(end)}
	d.s.answers.release(answer{at: end, r: r, resp: pinned.Append([]byte{byte(wire.OK)})})
}

// look moves the pin on, and appends to resp what there is to read.
func (b *backup) look(resp []byte, pin wal.LSN) []byte {
	s, k := b.s, &b.s.durable.backups
	k.mu.Lock()
	b.pin = max(b.pin, min(pin, s.durable.log.Durable()))
	k.mu.Unlock()
	m := &s.durable.marks
	m.Lock()
	seen := wire.BackupSeen{Closed: uint64(m.tick), Log: uint64(s.durable.log.Last()), Oldest: wire.NoTick}
	m.Unlock()
	seen.Present = uint64(s.parts.highestTick()) // read after the end of the log
	if tick, ok := s.durable.oldestTick(); ok {
		seen.Oldest = uint64(tick)
	}
	return seen.Append(resp)
}

// feedStep carries out a step of a feed.
func (b *backup) feedStep(step uint8, from uint64, skip uint32) (resp []byte, at wal.LSN, err error) {
	resp = []byte{byte(wire.OK)}
	switch step {
	case wire.BackupLook:
		return b.look(resp, wal.LSN(from)), 0, nil
	case wire.BackupLog:
		resp, err = b.records(resp, wal.LSN(from), skip)
		return resp, 0, err
	case wire.BackupClose:
		return b.close(resp)
	case wire.BackupEnd:
		b.s.durable.backups.end(b.id, "its client has ended it")
		return resp, 0, nil
	}
	return nil, 0, errors.New("a feed has no base")
}
