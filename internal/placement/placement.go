// Package placement says which data server holds which partition.
package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Server is the number of a data server of a cluster: 0 to the number of data servers,
// less one. A data server keeps its number wherever it runs. Hosts have numbers, too;
// these are plain ints.
type Server int

// Orderer is the data server that orders the changes of a cluster's catalogue.
const Orderer Server = 0

// Partition is the number of a partition of a cluster: 0 to the number of partitions,
// less one. All tables have the same partitions.
type Partition int

// Map is the placement of a cluster: for each partition its primary, which is the data
// server that holds it. A Map is immutable. The zero Map has no partitions. Its JSON form
// is an array of the primaries, by partition.
type Map struct{ primaries []Server }

// Spread returns the placement of a new cluster: partition p is at server p modulo
// servers. A number of servers below 1 counts as 1, one of partitions below 0 as 0.
func Spread(partitions, servers int) Map {
	m := Map{make([]Server, max(partitions, 0))}
	for p := range m.primaries {
		m.primaries[p] = Server(p % max(servers, 1))
	}
	return m
}

// New returns the placement with the given primaries, by partition. Its errors are those
// of Check.
func New(primaries []Server, servers int) (Map, error) {
	m := Map{slices.Clone(primaries)}
	return m, m.Check(servers)
}

// Check returns an error unless there is a partition, and all partitions are at servers
// of a cluster with that many servers. A Map that was decoded needs this check, because
// the encoding does not have the number of servers.
func (m Map) Check(servers int) error {
	if len(m.primaries) == 0 {
		return errors.New("no partitions")
	}
	for p, s := range m.primaries {
		if s < 0 || int(s) >= servers {
			return fmt.Errorf("partition %d is at server %d, want 0 to %d", p, s, servers-1)
		}
	}
	return nil
}

// Partitions returns the number of partitions.
func (m Map) Partitions() int { return len(m.primaries) }

// Primary returns the primary of a partition; it reports false if there is no such
// partition.
func (m Map) Primary(p Partition) (Server, bool) {
	if p < 0 || int(p) >= len(m.primaries) {
		return 0, false
	}
	return m.primaries[p], true
}

// At returns the primary of a partition that exists. It panics if there is no such
// partition.
func (m Map) At(p Partition) Server { return m.primaries[p] }

// Of iterates over the partitions of a server, in rising order.
func (m Map) Of(s Server) iter.Seq[Partition] {
	return func(yield func(Partition) bool) {
		for p, at := range m.primaries {
			if at == s && !yield(Partition(p)) {
				return
			}
		}
	}
}

// Count returns the number of partitions of a server.
func (m Map) Count(s Server) (n int) {
	for range m.Of(s) {
		n++
	}
	return n
}

// MarshalJSON implements json.Marshaler.
func (m Map) MarshalJSON() ([]byte, error) { return json.Marshal(m.primaries) }

// UnmarshalJSON implements json.Unmarshaler. See Check.
func (m *Map) UnmarshalJSON(b []byte) error {
	m.primaries = nil // another Map may share it
	return json.Unmarshal(b, &m.primaries)
}
