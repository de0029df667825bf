package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

var (
	// ErrOptions reports a set that cannot be made.
	ErrOptions = errors.New("certs: bad options")
	// ErrExists reports a file that would be overwritten.
	ErrExists = errors.New("certs: there is such a file already")
)

// MaxDays bounds the validity of a set.
const MaxDays = 3650

// maxNames bounds the hosts and clients of a set.
const maxNames = 1024

// Set describes the certificates of a cluster.
type Set struct {
	Dir     string   // made if it does not exist
	Hosts   []string // names or addresses by which servers are dialled
	Clients []string // see ParseClient
	Days    int      // validity
}

// File names of the authority.
const (
	CAFile    = "ca.pem"
	caKeyFile = "ca-key.pem"
)

// CertFile and KeyFile are the names of the files for a host or a client.
func CertFile(name string) string { return fileName(name) + ".pem" }

// KeyFile is the name of the file with the private key.
func KeyFile(name string) string { return fileName(name) + "-key.pem" }

// fileName replaces what an IPv6 address has and some file systems do not allow.
func fileName(name string) string { return strings.ReplaceAll(name, ":", "_") }

// check refuses what cannot be a host or a name, and names that would share a
// file.
func (s *Set) check() error {
	if s.Dir == "" {
		return fmt.Errorf("%w: no directory is named", ErrOptions)
	}
	if s.Days < 1 || s.Days > MaxDays {
		return fmt.Errorf("%w: %d days, want 1 to %d", ErrOptions, s.Days, MaxDays)
	}
	if len(s.Hosts) == 0 || len(s.Hosts)+len(s.Clients) > maxNames {
		return fmt.Errorf("%w: %d hosts and %d clients, want at least one host and at most %d in all", ErrOptions, len(s.Hosts), len(s.Clients), maxNames)
	}
	files := map[string]string{CAFile: "the authority", caKeyFile: "the authority"}
	for i, n := range append(append([]string{}, s.Hosts...), s.Clients...) {
		what := "host"
		if i >= len(s.Hosts) {
			what = "client"
			c, err := ParseClient(n)
			if err != nil {
				return err
			}
			n = c.Name
		}
		if net.ParseIP(n) == nil && !isName(n) {
			return fmt.Errorf("%w: %s %q, want a name of letters, digits, dots, hyphens and underscores, or an IP address", ErrOptions, what, n)
		}
		for _, f := range []string{CertFile(n), KeyFile(n)} {
			if other, twice := files[f]; twice {
				return fmt.Errorf("%w: %s %q and %s would both be in %s", ErrOptions, what, n, other, f)
			}
			files[f] = fmt.Sprintf("%s %q", what, n)
		}
	}
	for f := range files {
		path := filepath.Join(s.Dir, f)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return fmt.Errorf("certs: %w", err)
			}
			return fmt.Errorf("%w: %s; nothing was written", ErrExists, path)
		}
	}
	return nil
}

func isName(s string) bool {
	if s == "" || len(s) > 64 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_') {
			return false
		}
	}
	return true
}

// ParseClient takes a client of a Set apart: NAME, NAME=ROLE, or
// NAME=ROLE/TABLE/TABLE for one that may use these tables only. Without a role
// the client is a loader, which may do all that clients may.
func ParseClient(s string) (Leaf, error) {
	name, rest, given := strings.Cut(s, "=")
	l := Leaf{Name: name, Role: RoleLoader}
	if !given {
		return l, nil
	}
	parts := strings.Split(rest, "/")
	switch l.Role = parts[0]; l.Role {
	case RoleReader, RoleWriter, RoleLoader:
	default:
		return l, fmt.Errorf("%w: client %q, want the role %s, %s or %s after the name", ErrOptions, s, RoleReader, RoleWriter, RoleLoader)
	}
	for _, table := range parts[1:] {
		if table == "" {
			return l, fmt.Errorf("%w: client %q names a table without a name", ErrOptions, s)
		}
		l.Tables = append(l.Tables, table)
	}
	return l, nil
}

// Write makes the set as of now and returns the files in the order of
// writing. Nothing is overwritten: ErrExists, before anything is written.
func Write(s Set, now time.Time) ([]string, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("certs: %w", err)
	}
	until := now.AddDate(0, 0, s.Days)
	ca, err := NewAuthority("drtmx trial authority", now, until)
	if err != nil {
		return nil, err
	}
	w := writer{dir: s.Dir}
	w.pair(CAFile, caKeyFile, ca.Pair)
	var leaves []Leaf
	for _, h := range s.Hosts {
		leaves = append(leaves, Leaf{Name: h, Role: RoleServer, Hosts: []string{h}})
	}
	for _, c := range s.Clients {
		l, err := ParseClient(c)
		if err != nil {
			return nil, err
		}
		leaves = append(leaves, l)
	}
	for _, l := range leaves {
		l.NotBefore, l.NotAfter = now.Add(-clockSkew), until
		p, err := ca.Sign(l)
		if err != nil {
			return w.files, err
		}
		w.pair(CertFile(l.Name), KeyFile(l.Name), p)
	}
	return w.files, w.err
}

// writer writes files until one fails.
type writer struct {
	dir   string
	files []string
	err   error
}

func (w *writer) pair(cert, key string, p Pair) {
	w.file(cert, p.Cert, 0o644)
	w.file(key, p.Key, 0o600)
}

func (w *writer) file(name string, b []byte, mode fs.FileMode) {
	if w.err != nil {
		return
	}
	path := filepath.Join(w.dir, name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err == nil {
		_, err = f.Write(b)
		err = errors.Join(err, f.Close())
		w.files = append(w.files, path)
	}
	if err != nil {
		w.err = fmt.Errorf("certs: %w", err)
	}
}
