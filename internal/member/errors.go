package member

import (
	"errors"
	"fmt"
)

// Errors of this package. Returned errors wrap them and name the objects. If a
// context ends, the error is the context's error and none of these.
var (
	// ErrInput reports an invalid argument: a name, a server, a map or a time
	// that is out of bounds.
	ErrInput = errors.New("member: bad input")
	// ErrUnreachable reports that the store does not answer within a bounded time.
	ErrUnreachable = errors.New("member: store unreachable")
	// ErrOutcome accompanies ErrUnreachable if the change may or may not have
	// been made: read the state again.
	ErrOutcome = errors.New("member: it is unknown whether the change was made")
	// ErrRefused reports that the store answered with an error, such as no
	// permission or no space.
	ErrRefused = errors.New("member: refused by the store")
	// ErrReplaced reports that the store has lost data that it once returned,
	// or is another store: it may issue epochs that were used before.
	ErrReplaced = errors.New("member: the store's data is not what it was")
	// ErrNoCluster reports that the store knows no cluster of that name.
	ErrNoCluster = errors.New("member: no such cluster")
	// ErrFormat reports a stored value of another version of the format.
	ErrFormat = errors.New("member: other format")
	// ErrCorrupt reports a stored value that this package did not write.
	ErrCorrupt = errors.New("member: damaged value")
	// ErrTaken reports a Join with an index that a live server of another
	// instance holds. See TakenError.
	ErrTaken = errors.New("member: index is taken")
	// ErrEpoch reports a Swap from an epoch that is not the current one. See EpochError.
	ErrEpoch = errors.New("member: the map has changed")
	// ErrShape reports a server that was started with a number of servers or
	// partitions that differs from the cluster's.
	ErrShape = errors.New("member: the cluster has another shape")
	// ErrPlace reports a place that is not that of the server's data: see Admit.
	ErrPlace = errors.New("member: the place is not that of this data")
	// ErrElsewhere reports a server that another host has taken over, from a copy
	// of its data. What this host has of it may lack what was acknowledged since.
	ErrElsewhere = errors.New("member: the server is at another host now")
	// ErrLeaseLost reports a lease that was not renewed in time, or that was
	// evicted.
	ErrLeaseLost = errors.New("member: lease lost")
	// ErrLeft reports a lease whose holder has left.
	ErrLeft = errors.New("member: left")
	// ErrClosed reports the use of a store after Close.
	ErrClosed = errors.New("member: closed")
	// ErrTLS reports unusable certificate files.
	ErrTLS = errors.New("member: bad certificate file")
)

// TakenError names the holder of the index; it is ErrTaken.
type TakenError struct{ Holder Registration }

func (e *TakenError) Error() string {
	return fmt.Sprintf("%v: server %d is instance %v at %v", ErrTaken, e.Holder.Index, e.Holder.Instance, e.Holder.Endpoints)
}

// Is makes it ErrTaken.
func (e *TakenError) Is(target error) bool { return target == ErrTaken }

// EpochError has the epoch that a Swap expected and the current one; 0 means
// that there is no map. It is ErrEpoch.
type EpochError struct{ Expected, Current MapEpoch }

func (e *EpochError) Error() string {
	return fmt.Sprintf("%v: epoch is %d, expected %d", ErrEpoch, e.Current, e.Expected)
}

// Is makes it ErrEpoch.
func (e *EpochError) Is(target error) bool { return target == ErrEpoch }
