package backup

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/image"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/server"
	"drtmx/tables"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// contents are the rows of one data server as they were at a tick: those of its
// base, and what its log has changed since. Only the changes are in memory.
type contents struct {
	m      *Manifest
	server placement.Server
	at     clock.Tick
	base   *image.File
	// catalog is the newest version that was in use at the tick, as far as this
	// server knows; logged is the newest in its log.
	catalog, logged *tables.Catalog
	changed         map[place]map[index.Key]*version
	shares          map[share]redo.Part // prepared, and not decided so far
	record          redo.Record
}

// place is an index of a partition.
type place struct {
	partition placement.Partition
	index     int
}

// version is what the log has of a row.
type version struct {
	csn  block.CSN
	gone bool
	row  []byte
}

// share is a partition's part of a transaction.
type share struct {
	partition placement.Partition
	id        twophase.ID
}

// openBase opens the base of a server and checks that it is the manifest's.
func (m *Manifest) openBase(fs vfs.FS, dir string, server placement.Server) (f *image.File, err error) {
	files := &m.Files[server]
	path := fs.PathJoin(dir, files.Base)
	st, err := fs.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("backup: the base of data server %d: %w", server, err)
	}
	if st.Size() != files.BaseBytes {
		return nil, &CorruptError{path, min(st.Size(), files.BaseBytes), fmt.Sprintf("it has %d bytes, want %d", st.Size(), files.BaseBytes)}
	}
	if f, err = image.Open(fs, path); err != nil {
		return nil, err
	}
	if hex.EncodeToString(f.Identity[:]) != files.Identity || f.Log != files.BaseLog || f.Rows != files.BaseRows {
		return nil, errors.Join(&CorruptError{path, 0, "it is another base than that of the manifest"}, f.Close())
	}
	return f, nil
}

// readContents reads a server's part of a backup at a tick, but for the rows of
// the base.
func (m *Manifest) readContents(fs vfs.FS, dir string, server placement.Server, at clock.Tick) (*contents, error) {
	c := &contents{m: m, server: server, at: at, changed: map[place]map[index.Key]*version{}, shares: map[share]redo.Part{}}
	var err error
	if c.base, err = m.openBase(fs, dir, server); err != nil {
		return nil, err
	}
	if err = c.readCatalog(fs.PathJoin(dir, m.Files[server].Base)); err == nil {
		err = c.readChanges(fs, dir)
	}
	if err != nil {
		return nil, errors.Join(err, c.base.Close())
	}
	return c, nil
}

// readChanges reads the log.
func (c *contents) readChanges(fs vfs.FS, dir string) error {
	path := fs.PathJoin(dir, c.m.Files[c.server].Log)
	return c.m.readLog(fs, dir, c.server, func(f *logFrame) error {
		if f.kind == frameClosed {
			c.reached(f.tick())
			return nil
		}
		ok, err := f.records(func(start wal.LSN, payload []byte) error {
			if err := c.apply(start, payload); err != nil {
				return fmt.Errorf("the record at %d: %w", start, err)
			}
			return nil
		})
		if !ok {
			return &CorruptError{path, f.offset, "malformed records"}
		}
		if err != nil {
			return &CorruptError{path, f.offset, err.Error()}
		}
		return nil
	})
}

func (c *contents) readCatalog(path string) error {
	err := c.base.Blobs(server.BackupCatalog, func(_ placement.Partition, b []byte) (err error) {
		c.logged, err = tables.ParseCatalog(b)
		return err
	})
	if err == nil && c.logged == nil {
		err = errors.New("it has no catalogue")
	}
	if err != nil {
		return &CorruptError{path, 0, err.Error()}
	}
	c.catalog = c.logged
	return nil
}

// reached notes that the log has reached a tick. The newest version of the
// catalogue in the log so far was in use then.
func (c *contents) reached(tick clock.Tick) {
	if tick <= c.at {
		c.catalog = c.logged
	}
}

// apply takes a record. The base has the effects of all that lie before it, but not
// the shares.
func (c *contents) apply(start wal.LSN, payload []byte) error {
	r := &c.record
	if err := r.Decode(payload); err != nil {
		return err
	}
	before := uint64(start) < c.m.Files[c.server].BaseLog
	switch r.Kind {
	case redo.Prepared:
		if len(r.Parts) == 1 {
			c.shares[share{r.Partition, r.Step.ID}] = keepPart(&r.Parts[0])
		}
	case redo.Decided:
		return c.decided(r, before)
	case redo.Commit:
		for i := range r.Parts {
			if before {
				break
			}
			if err := c.commit(&r.Parts[i], r.Parts[i].CSN); err != nil {
				return err
			}
		}
	case redo.Load:
		if !before {
			return c.load(r)
		}
	case redo.Catalog:
		next, err := c.logged.Follow(r.Catalog)
		if err != nil {
			return err
		}
		c.logged = next
	}
	return nil
}

// decided applies the share of a transaction that has committed.
func (c *contents) decided(r *redo.Record, before bool) error {
	of := share{r.Partition, r.Step.ID}
	held, known := c.shares[of]
	delete(c.shares, of)
	if before || len(r.Parts) == 0 {
		return nil
	}
	part := r.Parts[0]
	if len(part.Writes) == 0 {
		if !known {
			return errors.New("the decision of a share that is not in the log")
		}
		part.Writes = held.Writes
	}
	return c.commit(&part, part.CSN)
}

// commit applies the writes of a commit.
func (c *contents) commit(part *redo.Part, csn block.CSN) error {
	if csn.Tick() > c.at {
		return nil
	}
	c.reached(csn.Tick())
	for i := range part.Writes {
		w := &part.Writes[i]
		if err := c.put(part.Partition, int(w.Index), w.Key, csn, w.Row, w.Op == wire.Delete); err != nil {
			return err
		}
	}
	return nil
}

// put takes the newest version of a row. Entries of secondary indexes follow from
// the rows.
func (c *contents) put(partition placement.Partition, id int, key index.Key, csn block.CSN, row []byte, gone bool) error {
	if id >= len(c.logged.Indexes) {
		return fmt.Errorf("a write to index %d of %d", id, len(c.logged.Indexes))
	}
	if c.logged.Indexes[id].IsMaintained() {
		return nil
	}
	at := place{partition, id}
	rows := c.changed[at]
	if rows == nil {
		rows = map[index.Key]*version{}
		c.changed[at] = rows
	}
	v := rows[key]
	if v == nil {
		v = &version{}
		rows[key.Clone()] = v
	}
	if csn >= v.csn {
		v.csn, v.gone, v.row = csn, gone, append(v.row[:0], row...)
	}
	return nil
}

// load applies rows that were loaded in bulk.
func (c *contents) load(r *redo.Record) error {
	if r.CSN.Tick() > c.at {
		return nil
	}
	c.reached(r.CSN.Tick())
	if int(r.Index) >= len(c.logged.Indexes) {
		return fmt.Errorf("a load of index %d of %d", r.Index, len(c.logged.Indexes))
	}
	def := c.logged.Indexes[r.Index]
	d := wire.NewDecoder(r.Rows)
	for d.Left() > 0 {
		var key index.Key
		var row []byte
		if def.Strings {
			key, _ = d.Key()
			row = d.Bytes()
		} else {
			key, row = index.Num(d.U64()), d.Take(def.RowBytes)
		}
		if d.Err() != nil {
			return nil // as the server has refused it
		}
		if err := c.put(r.Partition, int(r.Index), key, r.CSN, row, false); err != nil {
			return err
		}
	}
	return nil
}

// rows calls fn for all rows of an index of a partition. The arguments are valid only
// during the call.
func (c *contents) rows(at place, fn func(index.Key, []byte) error) error {
	changed := c.changed[at]
	err := c.base.Read(at.partition, at.index, func(e *index.Entry) error {
		if v := changed[e.Key]; v != nil {
			if v.csn >= e.Header.CSN() {
				return nil
			}
			delete(changed, e.Key) // the base has a newer one
		}
		return fn(e.Key, mem.Bytes(e.Row))
	})
	if err != nil {
		return err
	}
	for key, v := range changed {
		if !v.gone {
			if err := fn(key, v.row); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepPart copies a part of a record.
func keepPart(p *redo.Part) redo.Part {
	kept := *p
	kept.Writes = make([]wire.Write, 0, len(p.Writes))
	for _, w := range p.Writes {
		w.Row, w.Key = slices.Clone(w.Row), w.Key.Clone()
		kept.Writes = append(kept.Writes, w)
	}
	return kept
}
