package member

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"drtmx/internal/placement"
)

// addrBytesMax bounds the address of an endpoint, in bytes.
const addrBytesMax = 512

// Endpoint is the address of a server on one fabric. Its text form, also used
// in stored values, is the fabric's name, a colon and the address:
// shm:/run/drtmx/s0.sock, tcp:10.0.0.1:7000, verbs:10.0.0.1:7100.
type Endpoint struct {
	Fabric string // lower-case letters and digits
	// Addr is a host:port, or an absolute path for fabric shm.
	Addr string
}

func (e Endpoint) String() string { return e.Fabric + ":" + e.Addr }

// MarshalText returns the same text as String.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is the inverse of MarshalText; see ParseEndpoint.
func (e *Endpoint) UnmarshalText(b []byte) (err error) {
	*e, err = ParseEndpoint(string(b))
	return err
}

var fabricName = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)

// fabricShm is the fabric whose addresses are paths.
const fabricShm = "shm"

// ParseEndpoint parses the text of an endpoint; the error wraps ErrInput.
func ParseEndpoint(s string) (Endpoint, error) {
	fabric, addr, _ := strings.Cut(s, ":")
	e := Endpoint{Fabric: fabric, Addr: addr}
	return e, e.check()
}

func (e Endpoint) check() error {
	bad := func(want string) error { return fmt.Errorf("%w: endpoint %.80q: want %s", ErrInput, e.String(), want) }
	switch {
	case !fabricName.MatchString(e.Fabric):
		return bad("fabric:address, such as tcp:10.0.0.1:7000 or shm:/run/drtmx/s0.sock")
	case len(e.Addr) > addrBytesMax:
		return bad(fmt.Sprintf("an address of at most %d bytes", addrBytesMax))
	case !printable(e.Addr):
		return bad("an address of visible ASCII characters")
	case e.Fabric == fabricShm:
		if !strings.HasPrefix(e.Addr, "/") && !strings.HasPrefix(e.Addr, "@") {
			return bad("shm: and an absolute path")
		}
		return nil
	}
	host, port, err := net.SplitHostPort(e.Addr)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || portErr != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return bad(e.Fabric + ":host:port with a port from 1 to 65535")
	}
	return nil
}

// printable reports whether s can stand in one line, and in JSON without
// escapes.
func printable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			return false
		}
	}
	return true
}

var clusterName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckName returns an error, which wraps ErrInput, unless name is a valid name
// of a cluster.
func CheckName(name string) error {
	if !clusterName.MatchString(name) {
		return fmt.Errorf("%w: cluster name %.80q: want 1 to 63 of a-z, 0-9, dot, hyphen and underscore, beginning with a letter or digit",
			ErrInput, name)
	}
	return nil
}

// CheckTTL returns an error, which wraps ErrInput, if ttl is out of bounds.
func CheckTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return fmt.Errorf("%w: lease of %v, want %v to %v", ErrInput, ttl, MinTTL, MaxTTL)
	}
	return nil
}

// CheckZone returns an error, which wraps ErrInput, unless a zone can have the name, which
// may be empty.
func CheckZone(zone string) error {
	if len(zone) > MaxZoneBytes {
		return fmt.Errorf("%w: the name of a zone has %d bytes, want at most %d", ErrInput, len(zone), MaxZoneBytes)
	}
	for _, r := range zone {
		if r == utf8.RuneError || !unicode.IsPrint(r) || r == ',' {
			return fmt.Errorf("%w: zone %q, want printable characters and no comma", ErrInput, zone)
		}
	}
	return nil
}

// Check returns an error, which wraps ErrInput, unless a map can hold the
// server.
func (s *Server) Check() error {
	switch {
	case s.Index < 0 || s.Index >= MaxServers:
		return fmt.Errorf("%w: server %d, want 0 to %d", ErrInput, s.Index, MaxServers-1)
	case s.Instance == 0:
		return fmt.Errorf("%w: server %d: instance is 0", ErrInput, s.Index)
	case s.Host < 0 || s.Host >= MaxServers:
		return fmt.Errorf("%w: server %d: host %d, want 0 to %d", ErrInput, s.Index, s.Host, MaxServers-1)
	case len(s.Endpoints) < 1 || len(s.Endpoints) > MaxEndpoints:
		return fmt.Errorf("%w: server %d: %d endpoints, want 1 to %d", ErrInput, s.Index, len(s.Endpoints), MaxEndpoints)
	}
	if err := CheckZone(s.Zone); err != nil {
		return fmt.Errorf("server %d: %w", s.Index, err)
	}
	for i, e := range s.Endpoints {
		if err := e.check(); err != nil {
			return fmt.Errorf("server %d: %w", s.Index, err)
		}
		for _, other := range s.Endpoints[:i] {
			if e == other {
				return fmt.Errorf("%w: server %d: endpoint %v is named twice", ErrInput, s.Index, e)
			}
		}
	}
	return nil
}

// Check returns an error, which wraps ErrInput, if the map contradicts itself.
func (m *Map) Check() error {
	switch {
	case m.Epoch == 0:
		return fmt.Errorf("%w: map: epoch is 0", ErrInput)
	case m.ID == 0:
		return fmt.Errorf("%w: map: cluster is 0", ErrInput)
	case m.Size < 1 || m.Size > MaxServers:
		return fmt.Errorf("%w: map: size %d, want 1 to %d", ErrInput, m.Size, MaxServers)
	case m.Placement.Partitions() < 1 || m.Placement.Partitions() > MaxPartitions:
		return fmt.Errorf("%w: map: %d partitions, want 1 to %d", ErrInput, m.Placement.Partitions(), MaxPartitions)
	}
	if err := m.Placement.Check(m.Size); err != nil {
		return fmt.Errorf("%w: map: %w", ErrInput, err)
	}
	homes := map[Endpoint]placement.Server{}
	last := placement.Server(-1)
	for i := range m.Servers {
		s := &m.Servers[i]
		if err := s.Check(); err != nil {
			return fmt.Errorf("map: %w", err)
		}
		if s.Index <= last || int(s.Index) >= m.Size {
			return fmt.Errorf("%w: map: server %d after %d, want rising indexes below %d", ErrInput, s.Index, last, m.Size)
		}
		last = s.Index
		if s.Host >= m.Size {
			return fmt.Errorf("%w: map: server %d is at host %d, want 0 to %d", ErrInput, s.Index, s.Host, m.Size-1)
		}
		for _, e := range s.Endpoints {
			if other, ok := homes[e]; ok {
				return fmt.Errorf("%w: map: endpoint %v is that of servers %d and %d", ErrInput, e, other, s.Index)
			}
			homes[e] = s.Index
		}
	}
	return m.checkSets()
}

func (m *Map) checkSets() error {
	last := placement.Server(-1)
	for _, s := range m.Sets {
		switch {
		case s.Server <= last || int(s.Server) >= m.Size:
			return fmt.Errorf("%w: map: the copies of server %d after those of %d, want rising indexes below %d", ErrInput, s.Server, last, m.Size)
		case s.Epoch == 0 || s.Since == 0 || s.Since > s.Epoch || s.Version == 0 || s.Members == 0:
			return fmt.Errorf("%w: map: the copies of server %d: epoch %d, since %d, version %d, members %b", ErrInput, s.Server, s.Epoch, s.Since, s.Version, s.Members)
		}
		last = s.Server
	}
	return m.checkWishes()
}

func (m *Map) checkWishes() error {
	last := placement.Server(-1)
	for _, w := range m.Wishes {
		if w.Server <= last || int(w.Server) >= m.Size || w.Host < 0 || w.Host >= m.Size || w.Host == int(w.Server) {
			return fmt.Errorf("%w: map: the wish of server %d after that of %d, at host %d, want rising indexes and another host, below %d", ErrInput, w.Server, last, w.Host, m.Size)
		}
		last = w.Server
	}
	before := -1
	for _, h := range m.Drained {
		if h <= before || h >= m.Size {
			return fmt.Errorf("%w: map: drained host %d after %d, want rising numbers below %d", ErrInput, h, before, m.Size)
		}
		before = h
	}
	return nil
}

// CheckSwap returns an error, which wraps ErrInput, for invalid arguments of
// Store.Swap.
func CheckSwap(expected MapEpoch, next *Map) error {
	if next == nil {
		return fmt.Errorf("%w: swap to no map", ErrInput)
	}
	if next.Epoch != expected+1 {
		return fmt.Errorf("%w: swap from epoch %d to %d, want %d", ErrInput, expected, next.Epoch, expected+1)
	}
	_, err := EncodeMap(next)
	return err
}

// CheckJoin returns an error, which wraps ErrInput, for invalid arguments of
// Store.Join.
func CheckJoin(s *Server, ttl time.Duration) error {
	if err := CheckTTL(ttl); err != nil {
		return err
	}
	return s.Check()
}
