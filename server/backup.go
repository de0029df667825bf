package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/image"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A backup of a server is a base, which is a fuzzy checkpoint in a file of its
// own, and the log from before the base on. A client fetches both. The log is
// pinned meanwhile, which a client that is gone must not do for ever: the pin ends
// with its connection, or when it has asked for nothing during a lease.
//
// The log is pinned before the base begins, and the base begins when the shares
// that were prepared at the pin have been decided. So the log that is fetched has
// both the share and the decision of each transaction that the base may lack.

// Bounds of backups.
const (
	backupLease = 30 * time.Second
	backupsMax  = 4
	// backupPiece bounds the bytes of the base or of the log in one answer.
	backupPiece  = 512 << 10
	backupPrefix = "backup-" // of the directory of a base
	backupPoll   = time.Millisecond
	// BackupCatalog is the kind of the blob in a base that holds the catalogue.
	BackupCatalog = blobCatalog
)

// backups are the backups and the feeds that clients have under way at a durable
// server.
type backups struct {
	mu sync.Mutex // held while the log is cut
	of map[uint64]*backup
}

// backup is one of them.
type backup struct {
	s      *Server
	id     uint64
	peer   rdma.PeerID
	lease  *time.Timer
	cancel context.CancelFunc
	made   chan struct{} // closed when the base is complete, or will not be
	feed   bool          // it has no base

	// Under backups.mu:
	pin  wal.LSN // the log from here on is not cut
	base wire.BackupBaseState
	file vfs.File
	err  error // of the base

	pace struct { // of the answers with the base
		sync.Mutex
		began time.Time
		sent  int64
	}
}

var errNoBackup = errors.New("there is no such backup: its client was gone for too long, or the data server was restarted")

// cut cuts the log before a position, but keeps what backups and copies still need.
func (d *durable) cut(before wal.LSN) error {
	d.backups.mu.Lock()
	defer d.backups.mu.Unlock()
	for _, b := range d.backups.of {
		before = min(before, b.pin)
	}
	if d.group != nil {
		before = d.group.least(before)
	}
	return d.log.Cut(before)
}

// removeBackups removes the bases that an earlier process of the server has left.
func removeBackups(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, backupPrefix) {
			if err := fs.RemoveAll(fs.PathJoin(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// handleBackup serves one step of a backup or of a feed. A worker reads the files.
func (s *Server) handleBackup(r *rdma.Request, d *wire.Decoder) {
	if s.durable == nil {
		s.answers.refuse(r, "the data servers keep data in memory only: there is no log to back up (want --durability disk)")
		return
	}
	step := d.U8()
	if step == wire.BackupPin {
		if from := wal.LSN(d.U64()); d.End() == nil {
			s.durable.beginFeed(r, from)
			return
		}
	}
	if step == wire.BackupBegin && d.End() == nil {
		s.durable.beginBackup(r)
		return
	}
	id, at, skip := d.U64(), uint64(0), uint32(0)
	if step == wire.BackupChunk || step == wire.BackupLog || step == wire.BackupLook {
		at = d.U64()
	}
	if step == wire.BackupLog {
		skip = d.U32()
	}
	if step < wire.BackupBase || step > wire.BackupEnd && step != wire.BackupLook || d.End() != nil {
		s.answers.refuse(r, "malformed step of a backup")
		return
	}
	b := s.durable.backups.touch(id)
	if b == nil {
		s.answers.reply(r, verdict{code: wire.NotFound, text: errNoBackup.Error()}.append(nil))
		return
	}
	s.workers.background(func() {
		resp, lsn, err := b.step(step, at, skip)
		if err != nil {
			resp = verdict{code: wire.Unavailable, text: err.Error()}.append(nil)
		}
		s.answers.release(answer{at: lsn, r: r, resp: resp})
	})
}

// beginBackup pins the log and begins the base.
func (d *durable) beginBackup(r *rdma.Request) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it does not fail
	ctx, cancel := context.WithCancel(d.s.workers.ctx)
	b := &backup{s: d.s, id: binary.LittleEndian.Uint64(id[:]), peer: r.Peer, cancel: cancel, made: make(chan struct{})}
	if _, ok := d.backups.begin(b, d.log.End); !ok {
		cancel()
		d.s.answers.refuse(r, fmt.Sprintf("%d backups are under way, the limit", backupsMax))
		return
	}
	d.s.log.Info("backup begun", "backup", b.id, "log", uint64(b.pin))
	begun := b.beginAnswer()
	d.s.workers.background(func() { b.makeBase(ctx) })
	d.s.answers.reply(r, begun.Append([]byte{byte(wire.OK)}))
}

// beginAnswer returns the answer to the begin of a backup: the server's identity, and the
// position from which on the log is pinned.
func (b *backup) beginAnswer() wire.BackupBegun {
	s := b.s
	return wire.BackupBegun{
		ID: b.id, Identity: s.durable.dir.Bytes(), Server: s.parts.self, Servers: len(s.cfg.Addrs), Partitions: s.cfg.Partitions,
		Incarnation: s.parts.incarnation, Epoch: s.cfg.hosted.Epoch, Log: uint64(b.pin),
	}
}

// begin registers a backup or a feed, pinned at the position that pin returns, and
// starts its lease. It returns where the log begins. ok is false if too many are under
// way.
func (k *backups) begin(b *backup, pin func() wal.LSN) (first wal.LSN, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	most, of := backupsMax, 0
	if b.feed {
		most = feedsMax
	}
	for _, other := range k.of {
		if other.feed == b.feed {
			of++
		}
	}
	if of >= most {
		return 0, false
	}
	b.pin = pin()
	k.of[b.id] = b
	b.lease = time.AfterFunc(backupLease, func() { k.end(b.id, "its client has asked for nothing for too long") })
	return b.s.durable.log.First(), true
}

// touch returns a backup and renews its lease. It returns nil if the backup has ended.
func (k *backups) touch(id uint64) *backup {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.of[id]
	if b != nil {
		b.lease.Reset(backupLease)
	}
	return b
}

// left ends the backups of a client that has disconnected.
func (k *backups) left(peer rdma.PeerID) {
	k.mu.Lock()
	var gone []uint64
	for _, id := range slices.Sorted(maps.Keys(k.of)) {
		if k.of[id].peer == peer {
			gone = append(gone, id)
		}
	}
	k.mu.Unlock()
	for _, id := range gone {
		k.end(id, "its client has disconnected")
	}
}

// endAll ends all backups.
func (k *backups) endAll() {
	k.mu.Lock()
	var all []*backup
	for _, id := range slices.Sorted(maps.Keys(k.of)) {
		all = append(all, k.of[id])
	}
	clear(k.of)
	k.mu.Unlock()
	for _, b := range all {
		b.remove()
	}
}

// end ends a backup, if it has not ended: the log is no longer pinned, and the
// base is removed.
func (k *backups) end(id uint64, why string) {
	k.mu.Lock()
	b := k.of[id]
	delete(k.of, id)
	k.mu.Unlock()
	if b == nil {
		return
	}
	b.s.log.Info("backup ended", "backup", id, "reason", why)
	b.cancel()
	b.s.workers.background(func() {
		b.remove()
		if err := b.s.durable.cut(wal.LSN(b.s.durable.checkpoints.from.Load())); err != nil {
			b.s.log.Warn("the log could not be cut after a backup", "error", err)
		}
	})
}

// remove removes the base.
func (b *backup) remove() {
	b.cancel()
	b.lease.Stop()
	<-b.made
	var err error
	if b.file != nil {
		err = b.file.Close()
	}
	if b.feed {
		return
	}
	if err = errors.Join(err, b.s.cfg.FS.RemoveAll(b.dir())); err != nil {
		b.s.log.Warn("the base of a backup could not be removed", "error", err)
	}
}

func (b *backup) dir() string {
	return b.s.cfg.FS.PathJoin(b.s.cfg.Dir, fmt.Sprintf("%s%016x", backupPrefix, b.id))
}

// step carries out one step. The answer must wait until the log is durable up to at.
func (b *backup) step(step uint8, from uint64, skip uint32) (resp []byte, at wal.LSN, err error) {
	k := &b.s.durable.backups
	if b.feed {
		return b.feedStep(step, from, skip)
	}
	resp = []byte{byte(wire.OK)}
	switch step {
	case wire.BackupBase:
		progress := &b.s.durable.checkpoints
		k.mu.Lock()
		defer k.mu.Unlock()
		state := b.base
		if state.Bytes == 0 {
			state.Rows, state.Total = progress.rows.Load(), progress.total.Load()
		}
		return state.Append(resp), 0, b.err
	case wire.BackupChunk:
		resp, err = b.chunk(resp, int64(from))
		return resp, 0, err
	case wire.BackupLog:
		resp, err = b.records(resp, wal.LSN(from), skip)
		return resp, 0, err
	case wire.BackupClose:
		return b.close(resp)
	case wire.BackupLook:
		return nil, 0, errors.New("a backup has no such step")
	}
	k.end(b.id, "it is complete")
	return resp, 0, nil
}

// close marks the closed tick in the log. The answer waits until that record is durable
// here and at all copies in sync. So a server that has lost its place does not answer,
// and the server that took the place knows the tick.
func (b *backup) close(resp []byte) ([]byte, wal.LSN, error) {
	tick, end, v := b.s.durable.mark()
	if !v.ok() {
		return v.append(nil), 0, nil
	}
	closed := wire.BackupClosed{Tick: uint64(tick), Present: uint64(b.s.parts.highestTick()), Log: uint64(end)}
	return closed.Append(resp), end, nil
}

// chunk reads a piece of the base, at the rate of checkpoints.
func (b *backup) chunk(resp []byte, from int64) ([]byte, error) {
	k := &b.s.durable.backups
	k.mu.Lock()
	file, size := b.file, int64(b.base.Bytes)
	k.mu.Unlock()
	if file == nil || from < 0 || from > size {
		return nil, errors.New("the base is not complete, or does not reach so far")
	}
	n := min(backupPiece, size-from)
	resp = append(resp, make([]byte, n)...)
	if _, err := file.ReadAt(resp[1:], from); err != nil {
		return nil, err
	}
	b.pace.Lock()
	if b.pace.sent == 0 {
		b.pace.began = time.Now()
	}
	b.pace.sent += n
	ahead := time.Duration(float64(b.pace.sent)/float64(b.s.cfg.CheckpointRate)*float64(time.Second)) - time.Since(b.pace.began)
	b.pace.Unlock()
	if ahead > 0 {
		t := time.NewTimer(min(ahead, time.Second))
		defer t.Stop()
		select {
		case <-b.s.workers.ctx.Done():
		case <-t.C:
		}
	}
	return resp, nil
}

// records reads a piece of the log from a position on, without the first skip bytes of
// its first record. Unless b is a feed, the log before that position may then be cut.
func (b *backup) records(resp []byte, from wal.LSN, skip uint32) ([]byte, error) {
	k, log := &b.s.durable.backups, b.s.durable.log
	k.mu.Lock()
	before := from < b.pin
	if !b.feed {
		b.pin = max(b.pin, min(from, log.Durable()))
	}
	k.mu.Unlock()
	if before {
		return nil, fmt.Errorf("the log from %d on is no longer kept for the backup", from)
	}
	var m wire.BackupRecords
	room := backupPiece
	var bad error
	next, err := log.Read(from, func(r *wal.Record) bool {
		if int(skip) > len(r.Payload) {
			bad = fmt.Errorf("cannot skip %d bytes of a record of %d bytes", skip, len(r.Payload))
			return false
		}
		n := min(len(r.Payload)-int(skip), room)
		piece := r.Payload[skip:][:n]
		m.Records = append(m.Records, wire.BackupRecord{
			Start: uint64(r.Start), End: uint64(r.End), Bytes: uint32(len(r.Payload)), Piece: append([]byte(nil), piece...),
		})
		room -= n + backupRecordOverhead
		if skip+uint32(n) < uint32(len(r.Payload)) {
			m.Skip = skip + uint32(n)
			return false
		}
		skip = 0
		m.Next = uint64(r.End)
		return room > 0
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, err
	}
	m.Next = max(m.Next, uint64(next))
	return m.Append(resp), nil
}

// backupRecordOverhead bounds what a record takes in an answer besides its bytes.
const backupRecordOverhead = 32

// closedEverywhere returns the highest tick that all partitions of this server have
// closed: no later commit has this tick or a lower one. The log has all commits up to
// the tick before the position at.
func (d *durable) closedEverywhere() (tick clock.Tick, at wal.LSN, v verdict) {
	tick = block.MaxTick
	for _, p := range d.s.parts.here {
		p.mu.Lock()
		p.ticks.advance()
		tick = min(tick, p.ticks.closed)
		if len(p.records.debts) > 0 && p.records.pay() != nil {
			v = logVerdict(wal.ErrNoSpace) // a commit has been applied and is not in the log
		}
		p.unlock()
	}
	return tick, d.log.End(), v
}

// makeBase writes the base.
func (b *backup) makeBase(ctx context.Context) {
	defer close(b.made)
	base, file, err := b.writeBase(ctx)
	k := &b.s.durable.backups
	k.mu.Lock()
	b.base, b.file, b.err = base, file, err
	k.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		b.s.log.Warn("the base of a backup could not be made", "backup", b.id, "error", err)
	}
}

func (b *backup) writeBase(ctx context.Context) (base wire.BackupBaseState, file vfs.File, err error) {
	s, d := b.s, b.s.durable
	if err := s.durable.awaitSettled(ctx); err != nil {
		return base, nil, err
	}
	d.checkpoints.mu.Lock() // one walk of the rows at a time
	defer d.checkpoints.mu.Unlock()
	defer func() { d.checkpoints.rows.Store(0); d.checkpoints.total.Store(0) }()
	dir, err := image.MakeDir(s.cfg.FS, s.cfg.Dir, fmt.Sprintf("%s%016x", backupPrefix, b.id))
	if err != nil {
		return base, nil, err
	}
	s.catalog.versions.Lock() // with the lock held, the newest version in the log is in use
	c, from := s.catalog.Load(), d.log.End()
	s.catalog.versions.Unlock()
	info := image.Info{Identity: d.dir.Bytes(), Log: uint64(from), Tick: s.parts.highestTick()}
	w, err := image.Create(s.cfg.FS, dir, info, image.Options{BytesPerSecond: s.cfg.CheckpointRate})
	if err != nil {
		return base, nil, err
	}
	raw, err := json.Marshal(c)
	if err == nil {
		err = w.Blob(ctx, BackupCatalog, 0, raw)
	}
	if err == nil {
		err = d.checkpoints.writeRows(ctx, w, len(c.Indexes))
	}
	base.Tick = uint64(s.parts.highestTick())
	if err == nil {
		err = d.log.Wait(ctx, d.log.End())
	}
	if err != nil {
		return base, nil, errors.Join(err, w.Abort())
	}
	bytes, rows, err := w.Finish(ctx)
	if err != nil {
		return base, nil, errors.Join(err, w.Abort())
	}
	base.Rows, base.Total, base.Bytes, base.Log = rows, rows, uint64(bytes), uint64(from)
	file, err = s.cfg.FS.Open(s.cfg.FS.PathJoin(dir, image.Name(uint64(from))), vfs.SequentialReadsOption)
	return base, file, err
}

// awaitSettled waits until all shares that are prepared now have been decided and their
// decisions are in the log. It fails with errUnsettled after settleMax.
func (d *durable) awaitSettled(ctx context.Context) error {
	now := d.s.parts.highestTick()
	for began := time.Now(); ; {
		if tick, _, v := d.closedEverywhere(); v.ok() && tick >= now {
			return nil
		}
		if time.Since(began) > settleMax {
			return errUnsettled
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backupPoll):
		}
	}
}
