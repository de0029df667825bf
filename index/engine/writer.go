package engine

import (
	"drtmx/index/rolex"
	"drtmx/rdma"
)

// Indexes whose leaves clients change themselves have writers: see package rolex.
type (
	// Writer changes an index over one connection.
	Writer = rolex.Writer
	// WriterTxn is a transaction of a writer.
	WriterTxn = rolex.Txn
	// Write is a row that it changes, and Must a condition of it.
	Write = rolex.Write
	Must  = rolex.Must
	// WordProof is a word that it has READ.
	WordProof = rolex.Proof
	// WriterOptions, Opened and Spare are what a data server tells a writer.
	WriterOptions = rolex.Options
	Opened        = rolex.Opened
	Spare         = rolex.Spare
	// Owner is the number of a writer in its index.
	Owner = rolex.Owner
	// LeafHeader is the header of such a leaf.
	LeafHeader = rolex.Header
)

// WriterLease is how long a writer may hold a leaf that another waits for, by default.
const WriterLease = rolex.WriterLease

// Conditions of a Write.
const (
	MustNothing  = rolex.MustNothing
	MustExist    = rolex.MustExist
	MustNotExist = rolex.MustNotExist
)

// Errors of writers.
var (
	ErrFenced  = rolex.ErrFenced
	ErrNoLeaf  = rolex.ErrNoLeaf
	ErrUnknown = rolex.ErrUnknown
)

// NewWriter makes a writer: see rolex.NewWriter.
func NewWriter(c rdma.Conn, o WriterOptions, at Opened) (*Writer, error) {
	return rolex.NewWriter(c, o, at)
}

// ClientWritten is the server half of an index whose leaves clients change themselves: see
// rolex.Server.
type ClientWritten interface {
	Open(peer rdma.PeerID, key rdma.RKey) (Opened, error)
	Extend(o Owner, peer rdma.PeerID) ([]Spare, error)
	Settle(o Owner, peer rdma.PeerID) (committed uint64, err error)
	Options() WriterOptions
	Used() uint64
	Fence()
	Busy(busy bool)
}

var _ ClientWritten = (*rolex.Server)(nil)
