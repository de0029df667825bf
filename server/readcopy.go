package server

import (
	"errors"
	"fmt"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/wal"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// CopyRead is how much of a copy was read and found undamaged: the checkpoint at
// position Base of the log, and the log from there up to Log. The zero value is
// nothing.
type CopyRead struct{ Base, Log uint64 }

// errReadEnds says that a copy was given away, removed or closed while it was read.
var errReadEnds = errors.New("server: the copy was closed or replaced while it was read")

// finishPause is the time between looks whether finish has ended.
const finishPause = 5 * time.Millisecond

// read reads a complete copy: its checkpoint, and the log after it as far as it is
// durable. The copy takes steps meanwhile, but installs no checkpoint and cuts no log. A
// copy that is found damaged takes no steps of its log any more: its home makes it anew
// when it has left the set.
func (k *keptCopies) read(home placement.Server) (r CopyRead, err error) {
	c, err := k.get(home)
	if err != nil {
		return r, err
	}
	log, opened, err := c.beginReading(&r)
	if err != nil {
		return r, err
	}
	err = readBase(k.fs, c.dir, r.Base)
	if err == nil {
		var to wal.LSN
		if to, err = log.Read(wal.LSN(r.Base), func(*wal.Record) bool { return k.ctx.Err() == nil }); err == nil {
			err = k.ctx.Err()
		}
		r.Log = uint64(to)
	}
	return r, c.endReading(opened, err)
}

// beginReading keeps the checkpoint and the log from being replaced or cut, until
// endReading, and sets r.Base. opened is the number of this opening of the files.
func (c *keptCopy) beginReading(r *CopyRead) (log *wal.Log, opened int, err error) {
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			err = wal.ErrClosed
		case c.given:
			err = fmt.Errorf("%w: %s", ErrCopyGiven, c.dir)
		default:
			err = c.open()
		}
		switch {
		case err == nil && c.log == nil:
			err = fmt.Errorf("%w of data server %d in %s", ErrNoCopy, c.home, c.dir)
		case err == nil && (c.incoming.ready == nil || len(c.incoming.ready) > 0):
			c.readers++
			r.Base, log, opened = c.base, c.log, c.openings
			c.mu.Unlock()
			return log, opened, nil
		}
		c.mu.Unlock()
		if err != nil {
			return nil, 0, err
		}
		select { // the name of a checkpoint is about to change
		case <-c.k.ctx.Done():
			return nil, 0, c.k.ctx.Err()
		case <-time.After(finishPause):
		}
	}
}

func (c *keptCopy) endReading(opened int, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readers--
	if c.openings != opened || c.log == nil {
		return errors.Join(errReadEnds, err)
	}
	if isDamage(err) {
		c.k.log.Error("a copy is damaged: it is made anew when it has left the set", "copy_of", c.home, "error", err)
		_ = c.closeFiles() // an error of what is damaged
	}
	return err
}

// isDamage reports whether an error says that a file of a checkpoint or of a log is
// damaged or missing.
func isDamage(err error) bool {
	return errors.Is(err, wal.ErrMissing) || errors.As(err, new(*wal.CorruptError)) || errors.As(err, new(*image.CorruptError)) || oserror.IsNotExist(err)
}

// quiet returns for how long no step of a home's log has come. ok is false if none came
// since the process began.
func (k *keptCopies) quiet(home placement.Server) (d time.Duration, ok bool) {
	k.mu.Lock()
	c := k.of[home]
	k.mu.Unlock()
	if c == nil {
		return 0, false
	}
	heard := c.heard.Load()
	return clock.Now() - time.Duration(heard), heard != 0
}

// readBase reads and verifies the checkpoint at a position. There is none at 0.
func readBase(fs vfs.FS, dir string, base uint64) error {
	if base == 0 {
		return nil
	}
	f, err := image.Open(fs, fs.PathJoin(dir, CheckpointDir, image.Name(base)))
	if err != nil {
		return err
	}
	return errors.Join(f.Verify(), f.Close())
}

// ReadCopy reads the copy of a data server that is kept here, and fails if it is
// damaged. It is called before the copy is needed, so that CheckCopy need not read
// again what ReadCopy has read. The copy takes the log meanwhile.
func (s *Server) ReadCopy(home placement.Server) (CopyRead, error) {
	if s.durable == nil {
		return CopyRead{}, fmt.Errorf("%w of data server %d: this one keeps data in memory only", ErrNoCopy, home)
	}
	return s.durable.copies.read(home)
}

// CopySilence returns how long ago the last step came for the copy of a data server that
// is kept here. ok is false if none came since the process began.
func (s *Server) CopySilence(home placement.Server) (d time.Duration, ok bool) {
	if s.durable == nil {
		return 0, false
	}
	return s.durable.copies.quiet(home)
}

// CheckCopy reads a complete copy that is not open: the newest checkpoint and the log
// after it, except what was read before. It fails if they are damaged. It returns the
// end of the log, and changes nothing.
func CheckCopy(fs vfs.FS, dir string, id *datadir.Identity, before CopyRead) (end uint64, err error) {
	logs, err := image.List(fs, fs.PathJoin(dir, CheckpointDir))
	if err != nil && !oserror.IsNotExist(err) {
		return 0, err
	}
	var now CopyRead
	if len(logs) > 0 {
		now.Base = logs[0]
	}
	if before != (CopyRead{}) && before.Base == now.Base {
		now.Log = before.Log
	} else {
		if err := readBase(fs, dir, now.Base); err != nil {
			return 0, err
		}
		now.Log = now.Base
	}
	log, err := wal.Open(wal.Options{FS: fs, Dir: fs.PathJoin(dir, LogDir), Identity: id.Bytes(), Exists: true, ReadOnly: true})
	if err != nil {
		return 0, err
	}
	err = log.Replay(wal.LSN(now.Log), func(*wal.Record) error { return nil })
	return uint64(log.End()), errors.Join(err, log.Close())
}
