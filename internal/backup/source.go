package backup

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// callTimeout bounds the wait for an answer, whatever the server has to do first.
	callTimeout = 30 * time.Second
	// pollBase is how often a server is asked how its base stands.
	pollBase = 20 * time.Millisecond
)

// keepEvery is the time between requests that only keep the backup alive at a server
// while other servers, or the disk here, are slow. It is a small part of the server's
// lease. A variable, for tests.
var keepEvery = 5 * time.Second

// source is a data server that is backed up. It is for one goroutine at a time.
type source struct {
	server placement.Server
	addr   string
	conn   rdma.Conn
	begun  wire.BackupBegun
	state  wire.BackupBaseState
	req    []byte
	resp   []byte
	log    *logWriter
	next   wal.LSN // position of the log from which records are still to be fetched
	part   []byte  // of the record there
	files  Files
	rows   struct{ done, total atomic.Int64 } // of the base, while it is made
}

// dial connects to a data server and begins the backup there.
func (s *source) dial(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error)) (err error) {
	if s.conn, err = dial(ctx, s.addr); err != nil {
		return s.failed(err)
	}
	b, err := s.call(ctx, append(s.req[:0], byte(wire.OpBackup), wire.BackupBegin))
	if err != nil {
		return err
	}
	if err := s.begun.Decode(b); err != nil {
		return s.failed(err)
	}
	s.next = wal.LSN(s.begun.Log)
	return nil
}

func (s *source) failed(err error) error {
	return fmt.Errorf("%w %d at %s: %w", ErrServer, s.server, s.addr, err)
}

// call sends a request and returns the answer behind its code, valid until the
// next call.
func (s *source) call(ctx context.Context, req []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no answer within %v", callTimeout))
	defer cancel()
	s.req = req
	resp, err := rdma.Call(ctx, s.conn, req, s.resp[:0])
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, s.failed(err)
	}
	s.resp = resp
	switch {
	case len(resp) == 0:
		return nil, s.failed(wire.ErrMessage)
	case wire.Code(resp[0]) != wire.OK:
		return nil, s.failed(errors.New(string(resp[1:])))
	}
	return resp[1:], nil
}

// step is call for a step of the backup.
func (s *source) step(ctx context.Context, step byte, args ...uint64) ([]byte, error) {
	req := le.AppendUint64(append(s.req[:0], byte(wire.OpBackup), step), s.begun.ID)
	for _, a := range args {
		req = le.AppendUint64(req, a)
	}
	return s.call(ctx, req)
}

// keep keeps the backup alive at the server until a channel is closed.
func (s *source) keep(ctx context.Context, until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	default:
	}
	t := time.NewTicker(keepEvery)
	defer t.Stop()
	for {
		select {
		case <-until:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
			if _, err := s.step(ctx, wire.BackupBase); err != nil {
				return err
			}
		}
	}
}

// beside calls fn, and keeps the backup alive at the server meanwhile.
func (s *source) beside(ctx context.Context, fn func() error) error {
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = fn()
	}()
	kept := s.keep(ctx, done)
	<-done
	return errors.Join(err, kept)
}

// fetchBase waits for the base and copies it.
func (s *source) fetchBase(ctx context.Context, fs vfs.FS, dir string, show func()) (err error) {
	for s.state.Bytes == 0 {
		b, err := s.step(ctx, wire.BackupBase)
		if err == nil {
			err = s.state.Decode(b)
		}
		if err != nil {
			return err
		}
		s.rows.done.Store(int64(s.state.Rows))
		s.rows.total.Store(int64(s.state.Total))
		show()
		if s.state.Bytes == 0 {
			if err := sleep(ctx, pollBase); err != nil {
				return err
			}
		}
	}
	f, err := fs.Create(fs.PathJoin(dir, s.files.Base), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for at := uint64(0); at < s.state.Bytes; {
		b, err := s.step(ctx, wire.BackupChunk, at)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return s.failed(fmt.Errorf("the base ends at %d of %d bytes", at, s.state.Bytes))
		}
		if _, err := f.Write(b); err != nil {
			return err
		}
		at += uint64(len(b))
	}
	s.files.BaseBytes, s.files.BaseLog, s.files.BaseRows = int64(s.state.Bytes), s.state.Log, s.state.Rows
	return s.beside(ctx, f.Sync)
}

// closed asks for the tick that the server has closed, and the position before which
// its log has everything up to the tick.
func (s *source) closed(ctx context.Context) (c wire.BackupClosed, err error) {
	b, err := s.step(ctx, wire.BackupClose)
	if err == nil {
		err = c.Decode(b)
	}
	return c, err
}

// fetchLog copies the log up to a position at least.
func (s *source) fetchLog(ctx context.Context, to wal.LSN) error {
	var m wire.BackupRecords
	for s.next < to || len(s.part) > 0 {
		req := le.AppendUint64(append(s.req[:0], byte(wire.OpBackup), wire.BackupLog), s.begun.ID)
		b, err := s.call(ctx, le.AppendUint32(le.AppendUint64(req, uint64(s.next)), uint32(len(s.part))))
		if err == nil {
			err = m.Decode(b)
		}
		if err != nil {
			return err
		}
		if err := s.take(&m); err != nil {
			return err
		}
	}
	return nil
}

// take writes what a server has sent of its log.
func (s *source) take(m *wire.BackupRecords) error {
	next := wal.LSN(m.Next)
	if next < s.next || next == s.next && m.Skip <= uint32(len(s.part)) {
		return s.failed(fmt.Errorf("its log does not go on at %d", s.next))
	}
	for i := range m.Records {
		r := &m.Records[i]
		payload := r.Piece
		if len(s.part) > 0 {
			s.part = append(s.part, r.Piece...)
			payload = s.part
		}
		switch n := uint32(len(payload)); {
		case n == r.Bytes:
			if err := s.log.add(wal.LSN(r.Start), wal.LSN(r.End), payload); err != nil {
				return err
			}
			s.part = s.part[:0]
		case i == len(m.Records)-1 && n == m.Skip:
			if len(s.part) == 0 {
				s.part = append(s.part, r.Piece...)
			}
		default:
			return s.failed(fmt.Errorf("%d bytes of a record of %d", n, r.Bytes))
		}
	}
	s.next = next
	return nil
}

// end ends the backup at the server.
func (s *source) end(ctx context.Context) error {
	_, err := s.step(ctx, wire.BackupEnd)
	return err
}

func (s *source) close() error {
	var err error
	if s.log != nil {
		err = s.log.f.Close()
	}
	if s.conn != nil {
		err = errors.Join(err, s.conn.Close())
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
