package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"drtmx/internal/placement"
)

// Hello is a data server's description of itself and of the cluster.
type Hello struct {
	Version     int              `json:"version"`
	Incarnation uint64           `json:"incarnation,string"` // of the state: differs after a restart without it
	Server      placement.Server `json:"server"`             // which of Servers answered
	Servers     []string         `json:"servers"`
	Placement   placement.Map    `json:"primaries"`
	Epoch       uint32           `json:"epoch"` // of the server's memory: it rises when the server recovers
	// Now is what the server's clock shows, in nanoseconds: see Part.Read.
	Now time.Duration `json:"now,string,omitempty"`
	// Durable means that servers recover what they have acknowledged, under the
	// same incarnation.
	Durable bool `json:"durable,omitempty"`
	// Leased means that the server has its place as long as a lease: clients that
	// READ its memory ask for how long, by OpLease.
	Leased bool `json:"leased,omitempty"`
	// Moves means that data servers may move to other hosts. Who moves them is a store
	// of members, which clients follow.
	Moves bool `json:"moves,omitempty"`
	// Checksums means that every block has a checksum, without which nobody can READ
	// blocks over a connection that does not read in order.
	Checksums bool            `json:"checksums,omitempty"`
	Catalog   json.RawMessage `json:"catalog"`
	// CatalogVersion is the version of Catalog.
	CatalogVersion int      `json:"catalog_version"`
	Hosted         []Hosted `json:"hosted"`
	// Incarnations has, for each server, the first incarnation that this server
	// has seen; 0 means none yet.
	Incarnations []uint64 `json:"incarnations,omitempty"`
	// Replaced means that another server knows a different incarnation of this
	// server: it was restarted without its memory, while others kept theirs.
	Replaced bool `json:"replaced,omitempty"`
	// Unmet says which data server has not shown that it knows this server's
	// incarnation, and why. Meanwhile clients wait, because if this server lost its
	// memory, nobody might notice. It is empty if all know it, and for a server that
	// recovers its memory.
	Unmet string `json:"unmet,omitempty"`
	// Keeper means that no data server answers: the host keeps copies of others, and
	// says nothing else.
	Keeper bool `json:"keeper,omitempty"`
}

// ErrKeeper reports a host that has no data server. One may be there later.
var ErrKeeper = errors.New("wire: the host has no data server, and keeps copies of others")

// Hosted is a partition of the server that answered.
type Hosted struct {
	Partition placement.Partition `json:"partition"`
	RKey      uint32              `json:"rkey"`
	Roots     []uint64            `json:"roots"` // by index number
	// Leaves are the keys of regions that have the leaves of one index, by index number. 0 means
	// that the index is in the partition's region, and so do numbers past the end.
	Leaves []uint32 `json:"leaves,omitempty"`
}

// RegionOf returns the number, in proofs, of the region with the leaves of an index.
func RegionOf(id int) uint16 { return uint16(id + 1) }

// IndexOf returns the index with the leaves in a region whose number is not 0.
func IndexOf(region uint16) int { return int(region) - 1 }

// LeavesOf returns the key of the region with the leaves of an index, 0 if that is the
// partition's.
func (h *Hosted) LeavesOf(id int) uint32 {
	if id < len(h.Leaves) {
		return h.Leaves[id]
	}
	return 0
}

// AppendHello appends the encoding of a hello without Now, with that time added.
func AppendHello(b, hello []byte, now time.Duration) []byte {
	b = strconv.AppendInt(append(b, `{"now":"`...), int64(now), 10)
	return append(append(b, `",`...), hello[1:]...)
}

// AppendHelloOfServer appends the request of a data server for the hello of
// another. It contains the number and incarnation of the requesting server.
func AppendHelloOfServer(b []byte, server placement.Server, incarnation uint64) []byte {
	return le.AppendUint64(le.AppendUint16(append(b, byte(OpHello)), uint16(server)), incarnation)
}

// DecodeHello decodes and checks a hello. It fails with ErrKeeper if no data server
// has answered.
func DecodeHello(b []byte) (*Hello, error) {
	var h Hello
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("%w: hello: %v", ErrMessage, err)
	}
	if h.Version != Version {
		return nil, fmt.Errorf("%w: server speaks version %d, this program %d", ErrMessage, h.Version, Version)
	}
	if h.Keeper {
		return nil, ErrKeeper
	}
	parts := h.Placement.Partitions()
	if len(h.Servers) == 0 || len(h.Servers) > MaxParts || parts > MaxParts || h.Server < 0 || int(h.Server) >= len(h.Servers) || h.Now < 0 {
		return nil, fmt.Errorf("%w: hello: %d servers, %d partitions, server %d", ErrMessage, len(h.Servers), parts, h.Server)
	}
	if n := len(h.Incarnations); n != 0 && n != len(h.Servers) {
		return nil, fmt.Errorf("%w: hello: %d incarnations of %d servers", ErrMessage, n, len(h.Servers))
	}
	if err := h.Placement.Check(len(h.Servers)); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", ErrMessage, err)
	}
	for _, p := range h.Hosted {
		if _, ok := h.Placement.Primary(p.Partition); !ok {
			return nil, fmt.Errorf("%w: hello: partition %d of %d", ErrMessage, p.Partition, parts)
		}
	}
	return &h, nil
}
