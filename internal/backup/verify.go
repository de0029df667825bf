package backup

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/placement"
)

// Verified is what Verify has read.
type Verified struct {
	Manifest  *Manifest `json:"manifest"`
	Files     int       `json:"files"`
	Bytes     int64     `json:"bytes"`
	Rows      uint64    `json:"rows"`      // of the bases, entries of indexes included
	Changes   uint64    `json:"changes"`   // rows that the logs change
	Catalogue int       `json:"catalogue"` // the version at the end
}

// Verify reads all of a backup and checks it: every checksum, that the logs are
// without gaps from the bases up to the last tick, and that the records can be
// applied. Damage is an error that names file and offset. It changes nothing.
func Verify(fs vfs.FS, dir string, show func(Progress)) (*Verified, error) {
	m, err := ReadManifest(fs, dir)
	if err != nil {
		return nil, err
	}
	v := &Verified{Manifest: m, Files: 1}
	for i := range placement.Server(len(m.Files)) {
		if show != nil {
			show(Progress{Stage: "verify", Done: int64(i), Total: int64(len(m.Files))})
		}
		if err := v.server(fs, dir, i); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (v *Verified) server(fs vfs.FS, dir string, i placement.Server) (err error) {
	c, err := v.Manifest.readContents(fs, dir, i, v.Manifest.Last)
	if err != nil {
		return err
	}
	defer c.base.Close() // it was only read
	if err := c.base.Verify(); err != nil {
		return err
	}
	for at, rows := range c.changed {
		if int(at.partition) >= v.Manifest.Partitions {
			return &CorruptError{fs.PathJoin(dir, v.Manifest.Files[i].Log), 0, fmt.Sprintf("it has partition %d of %d", at.partition, v.Manifest.Partitions)}
		}
		v.Changes += uint64(len(rows))
	}
	v.Files += 2
	v.Bytes += v.Manifest.Files[i].BaseBytes + v.Manifest.Files[i].LogBytes
	v.Rows += c.base.Rows
	v.Catalogue = max(v.Catalogue, c.catalog.Version())
	return nil
}
