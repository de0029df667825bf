package backup

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/placement"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Names in the directory of a backup.
const (
	manifestFile = "MANIFEST"
	temporary    = ".tmp"
	filePrefix   = "server-"
	baseKind     = ".base"
	logKind      = ".log"
)

// Manifest describes what a backup has.
type Manifest struct {
	Format     int    `json:"format"`
	ID         string `json:"id"` // random, repeated in the logs
	Servers    int    `json:"servers"`
	Partitions int    `json:"partitions"`
	// First and Last are the ticks between which, both included, the backup can be
	// restored; their times are those by the clocks of the data servers.
	First     clock.Tick `json:"first"`
	Last      clock.Tick `json:"last"`
	FirstTime time.Time  `json:"first_time"`
	LastTime  time.Time  `json:"last_time"`
	Files     []Files    `json:"files"` // by server
}

// Files describes the files of one data server.
type Files struct {
	Identity    string `json:"identity"` // of its data directory, repeated in the base
	Incarnation uint64 `json:"incarnation,string"`
	Epoch       uint32 `json:"epoch"`
	Base        string `json:"base"`
	BaseBytes   int64  `json:"base_bytes"`
	BaseLog     uint64 `json:"base_log"` // position from which on the base may lack records
	BaseRows    uint64 `json:"base_rows"`
	Log         string `json:"log"`
	LogBytes    int64  `json:"log_bytes"` // of the file; what follows does not count
	LogFrom     uint64 `json:"log_from"`  // positions in the log of the server
	LogTo       uint64 `json:"log_to"`
}

// setLast sets the range.
func (m *Manifest) setLast(last clock.Tick) {
	m.Last, m.FirstTime, m.LastTime = last, m.First.Time(), last.Time()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// heading is the first line of a manifest. The checksum is of the format and of all
// other lines.
const heading = "drtmx backup, format %d, crc32c %08x"

func manifestSum(format int, rest []byte) uint32 {
	return crc32.Update(crc32.Checksum(le.AppendUint32(nil, uint32(format)), castagnoli), castagnoli, rest)
}

// write replaces the manifest of the directory, durably and at once.
func (m *Manifest) write(fs vfs.FS, dir string) (err error) {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	at := fs.PathJoin(dir, manifestFile)
	f, err := fs.Create(at+temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append(fmt.Appendf(nil, heading+"\n", Version, manifestSum(Version, raw)), raw...))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		// The names of the files that the manifest describes must be durable before its own.
		err = datadir.SyncDir(fs, dir)
	}
	if err == nil {
		err = fs.Rename(at+temporary, at)
	}
	if err != nil {
		return err
	}
	return datadir.SyncDir(fs, dir)
}

// ReadManifest reads the manifest of a backup.
func ReadManifest(fs vfs.FS, dir string) (*Manifest, error) {
	if err := datadir.CheckDir(fs, dir); err != nil {
		return nil, err
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoBackup, err)
	}
	path := fs.PathJoin(dir, manifestFile)
	f, err := fs.Open(path)
	if oserror.IsNotExist(err) {
		for _, name := range names {
			if strings.HasPrefix(name, filePrefix) && (strings.HasSuffix(name, baseKind) || strings.HasSuffix(name, logKind)) {
				return nil, fmt.Errorf("%w: %s has files of data servers and no %s: the backup failed, was ended, or still runs", ErrIncomplete, dir, manifestFile)
			}
		}
		return nil, fmt.Errorf("%w: %s has no %s", ErrNoBackup, dir, manifestFile)
	}
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return parseManifest(path, raw)
}

func parseManifest(path string, raw []byte) (*Manifest, error) {
	line, rest, _ := bytes.Cut(raw, []byte("\n"))
	var format int
	var sum uint32
	if n, err := fmt.Sscanf(string(line), heading, &format, &sum); n != 2 || err != nil {
		return nil, &CorruptError{path, 0, "its first line is not that of a manifest"}
	}
	switch {
	case string(line) != fmt.Sprintf(heading, format, sum) || sum != manifestSum(format, rest):
		return nil, &CorruptError{path, 0, "the checksum in its first line is not that of the format and the rest"}
	case format != Version:
		return nil, fmt.Errorf("%w: %s has format %d, this program reads %d", ErrVersion, path, format, Version)
	}
	m := &Manifest{}
	if err := json.Unmarshal(rest, m); err != nil {
		return nil, &CorruptError{path, int64(len(line) + 1), err.Error()}
	}
	id, err := hex.DecodeString(m.ID)
	if err != nil || len(id) != idBytes || m.Servers < 1 || len(m.Files) != m.Servers || m.Partitions < m.Servers || m.First > m.Last {
		return nil, &CorruptError{path, int64(len(line) + 1), "what it says contradicts itself"}
	}
	return m, nil
}

// fileName returns the name of a file of a server.
func fileName(server placement.Server, kind string) string {
	return fmt.Sprintf("%s%d%s", filePrefix, server, kind)
}
