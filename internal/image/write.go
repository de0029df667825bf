package image

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"drtmx/index"
	"drtmx/internal/placement"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a Writer.
type Options struct {
	// BytesPerSecond bounds the rate at which the file is written; 0 means no bound.
	BytesPerSecond int64
}

const (
	// blockBytes is the size from which on a block of rows is written.
	blockBytes = 64 << 10
	// syncBytes is written before the operating system is told to begin to sync it.
	// A sync of the log waits for what the disk is writing.
	syncBytes = 256 << 10
	// lateMax bounds what is written without a pause after the writer was late.
	lateMax = 4 * time.Millisecond
)

// Writer writes a checkpoint. After an error only Abort is of use.
type Writer struct {
	fs         vfs.FS
	dir, path  string
	f          vfs.File
	o          Options
	due        time.Time // when the rate allows the next write
	seed       uint32    // checksum of the head, with which all others begin
	off        int64
	buf        []byte // the block that is being filled, with room for its frame
	block      frame
	prev       coder
	table      []byte // frames of all blocks
	rows       uint64
	unfinished bool
}

// Create begins the checkpoint of a position, in a file with a temporary name. It
// replaces the remains of an earlier one.
func Create(fs vfs.FS, dir string, info Info, o Options) (*Writer, error) {
	w := &Writer{fs: fs, dir: dir, path: fs.PathJoin(dir, Name(info.Log)), o: o, due: time.Now()}
	f, err := fs.Create(w.path+temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	w.f, w.unfinished = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: syncBytes, NoSyncOnClose: true}), true
	head := make([]byte, 0, headBytes)
	head = le.AppendUint32(append(head, headMagic...), Version)
	head = le.AppendUint32(head, crc32.Checksum(head, castagnoli))
	head = append(head, info.Identity[:]...)
	head = le.AppendUint64(le.AppendUint64(head, info.Log), uint64(info.Tick))
	head = append(head, make([]byte, headBytes-crcBytes-len(head))...)
	w.seed = crc32.Checksum(head, castagnoli)
	head = le.AppendUint32(head, w.seed)
	w.reset()
	if err := w.write(context.Background(), head); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	return w, nil
}

func (w *Writer) reset() {
	w.buf = append(w.buf[:0], make([]byte, frameBytes)...)
	w.prev = coder{str: w.prev.str[:0]}
	w.block.rows = 0
}

// Index says to which index the rows belong that follow. It writes the rows before.
func (w *Writer) Index(ctx context.Context, partition placement.Partition, index int, strs bool) error {
	if err := w.flush(ctx, 1); err != nil {
		return err
	}
	w.block = frame{kind: kindRows, partition: uint16(partition), index: uint16(index)}
	if strs {
		w.block.kind = kindStrs
	}
	return nil
}

// Row adds a row. It writes nothing: the caller may hold an executor. Rows in
// the order of their keys take the least room.
func (w *Writer) Row(e *index.Entry) {
	w.buf = w.prev.append(w.buf, w.block.kind == kindStrs, e.Key, e.Header.CSN(), e.Row)
	w.block.rows++
	w.rows++
}

// Flush writes the rows so far if they fill a block, and waits if the rate would
// be exceeded.
func (w *Writer) Flush(ctx context.Context) error { return w.flush(ctx, blockBytes) }

func (w *Writer) flush(ctx context.Context, least int) error {
	if len(w.buf)-frameBytes < least {
		return nil
	}
	err := w.close(ctx)
	w.reset()
	return err
}

// Blob adds a blob of a kind and a partition. Its bytes have a meaning only for the
// caller.
func (w *Writer) Blob(ctx context.Context, kind uint16, partition placement.Partition, b []byte) error {
	if err := w.flush(ctx, 1); err != nil {
		return err
	}
	w.block = frame{kind: kindBlob, partition: uint16(partition), index: kind}
	w.buf = append(w.buf, b...)
	err := w.close(ctx)
	w.reset()
	return err
}

// close writes the block in the buffer.
func (w *Writer) close(ctx context.Context) error {
	if len(w.buf) > math.MaxUint32 {
		return fmt.Errorf("image: a block of %d bytes", len(w.buf))
	}
	w.block.bytes, w.block.offset = uint32(len(w.buf)-frameBytes), w.off
	w.block.append(w.buf[crcBytes:crcBytes])
	le.PutUint32(w.buf, crc32.Update(w.seed, castagnoli, w.buf[crcBytes:]))
	if w.block.kind != kindFooter {
		w.table = w.block.append(w.table)
	}
	return w.write(ctx, w.buf)
}

func (w *Writer) write(ctx context.Context, b []byte) error {
	n, err := w.f.Write(b)
	w.off += int64(n)
	if err != nil || w.o.BytesPerSecond == 0 {
		return err
	}
	now := time.Now()
	if late := now.Add(-lateMax); w.due.Before(late) {
		w.due = late
	}
	w.due = w.due.Add(time.Duration(float64(n) / float64(w.o.BytesPerSecond) * float64(time.Second)))
	ahead := w.due.Sub(now)
	if ahead <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(ahead)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Finish completes the file, syncs it, and gives it its name. When it has
// returned without error, the checkpoint survives a crash. It returns the size of
// the file and the number of rows.
func (w *Writer) Finish(ctx context.Context) (bytes int64, rows uint64, err error) {
	if err := w.flush(ctx, 1); err != nil {
		return 0, 0, err
	}
	footer := w.off
	w.block = frame{kind: kindFooter, rows: uint32(len(w.table) / (frameBytes - crcBytes))}
	w.buf = append(w.buf, w.table...)
	if err := w.close(ctx); err != nil {
		return 0, 0, err
	}
	t := append(make([]byte, 0, trailerBytes), trailerMagic...)
	t = le.AppendUint64(le.AppendUint64(t, uint64(footer)), w.rows)
	t = le.AppendUint32(t, w.seed)
	t = le.AppendUint32(t, crc32.Checksum(t, castagnoli))
	if err := w.write(ctx, t); err != nil {
		return 0, 0, err
	}
	if err := w.f.Sync(); err != nil {
		return 0, 0, err
	}
	f := w.f
	w.f = nil
	if err := f.Close(); err != nil {
		return 0, 0, err
	}
	if err := w.fs.Rename(w.path+temporary, w.path); err != nil {
		return 0, 0, err
	}
	w.unfinished = false
	return w.off, w.rows, syncDir(w.fs, w.dir)
}

// Abort removes a file that was not finished.
func (w *Writer) Abort() error {
	var err error
	if w.f != nil {
		err = w.f.Close()
		w.f = nil
	}
	if w.unfinished {
		w.unfinished = false
		err = errors.Join(err, w.fs.Remove(w.path+temporary))
	}
	return err
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
