package exec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"

	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// kinds are the errors whose identity RPCs preserve, by their number in messages.
var kinds = [...]error{
	1: ErrNotFound, 2: ErrExists, 3: ErrReadOnly, 4: ErrOutOfMemory, 5: ErrClosed, 6: ErrProtocol, 7: ErrTooLarge,
	8: ErrUnavailable, 9: ErrForbidden, 10: ErrNoProcedure, 11: tables.ErrKey, 12: tables.ErrRow, 13: tables.ErrSchema, 14: tables.ErrNoTable, 15: tables.ErrCatalog,
}

func kindOf(err error) uint8 {
	for i, k := range kinds {
		if k != nil && errors.Is(err, k) {
			return uint8(i)
		}
	}
	return 0
}

// fault is the encoding of a tables.Error.
type fault struct {
	Kind      uint8      `json:"kind"`
	Table     string     `json:"table,omitempty"`
	Index     string     `json:"index,omitempty"`
	Strings   bool       `json:"strings,omitempty"`
	Key       tables.Key `json:"key,omitzero"`
	Partition int        `json:"partition"`
	Server    string     `json:"server,omitempty"`
	Limit     string     `json:"limit,omitempty"`
	Max       int64      `json:"max,omitempty"`
	Size      int64      `json:"size,omitempty"`
	Detail    string     `json:"detail,omitempty"`
	Restarted bool       `json:"restarted,omitempty"` // its cause is ErrRestarted
}

// EncodeFault returns the text of an answer for an error. If the error is a tables.Error,
// codeError decodes the text to one with the same table, key and other objects.
func EncodeFault(err error) string {
	var e *tables.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	f := fault{
		Kind: kindOf(e.Err), Table: e.Table, Index: e.Index, Key: e.Key, Partition: e.Partition, Server: e.Server,
		Limit: e.Limit, Max: e.Max, Size: e.Size, Detail: e.Detail,
	}
	if f.Restarted = errors.Is(err, ErrRestarted); e.Cause != nil && e.Cause != ErrRestarted && f.Detail == "" {
		f.Detail = e.Cause.Error()
	}
	b, jerr := json.Marshal(f)
	if jerr != nil {
		return err.Error()
	}
	return string(b)
}

// faultIn decodes the output of Fault, nil if it is plain text. kind is the
// error's kind if the text has none.
func faultIn(kind error, text []byte) *tables.Error {
	var f fault
	if len(text) == 0 || text[0] != '{' || json.Unmarshal(text, &f) != nil {
		return nil
	}
	if int(f.Kind) < len(kinds) && kinds[f.Kind] != nil {
		kind = kinds[f.Kind]
	}
	if kind == nil {
		return nil
	}
	e := &tables.Error{
		Err: kind, Table: f.Table, Index: f.Index, Key: f.Key, Partition: f.Partition, Server: f.Server,
		Limit: f.Limit, Max: f.Max, Size: f.Size, Detail: f.Detail,
	}
	if f.Restarted {
		e.Cause = ErrRestarted
	}
	return e
}

// codeKinds are the errors of response codes that are not results.
var codeKinds = map[wire.Code]error{
	wire.Exists: ErrExists, wire.NotFound: ErrNotFound, wire.OutOfMemory: ErrOutOfMemory, wire.NoProcedure: ErrNoProcedure,
	wire.Unavailable: ErrUnavailable, wire.Forbidden: ErrForbidden, wire.TooLarge: ErrTooLarge, wire.ResultLost: ErrResultLost,
	wire.NoSpace: ErrNoSpace, wire.FewCopies: ErrFewCopies, wire.InDoubt: ErrUnavailable, wire.Late: context.DeadlineExceeded, wire.Sealed: ErrSealed,
}

// codeError returns the error for a response code that is not a result.
func codeError(c wire.Code, text []byte) error {
	kind := cmp.Or(codeKinds[c], ErrProtocol)
	if e := faultIn(kind, text); e != nil {
		return e
	}
	return &tables.Error{Err: kind, Partition: -1, Detail: string(text)}
}

// tooLarge returns an ErrTooLarge that names the size, the bound and the bound's
// name.
func tooLarge(what string, size, most int, limit string) *tables.Error {
	return &tables.Error{Err: ErrTooLarge, Partition: -1, Detail: what, Limit: limit, Max: int64(most), Size: int64(size)}
}

// Unavailable returns the error for a server that does not answer.
func (db *DB) Unavailable(server placement.Server, cause error) error {
	var e *tables.Error
	if errors.As(cause, &e) && e.Err == ErrUnavailable {
		return cause
	}
	return &tables.Error{Err: ErrUnavailable, Partition: -1, Server: db.servers[server], Cause: cause}
}

func (t *Txn) concerns(kind error, ix *tables.Index, key index.Key) *tables.Error {
	e := ix.Concerns(kind, userKey(ix, key))
	e.Partition = int(t.where.partition(ix, key))
	return e
}

// named adds the key of the absent row to a bare ErrNotFound.
func (t *Txn) named(err error, ix *tables.Index, key index.Key) error {
	if err == ErrNotFound {
		return t.concerns(err, ix, key)
	}
	return err
}

// registered are the errors of programs whose identity RPCs preserve.
var registered struct {
	sync.RWMutex
	names  []string
	byName map[string]error
}

// RegisterError gives an error a name by which RPCs preserve its identity.
func RegisterError(name string, err error) {
	registered.Lock()
	defer registered.Unlock()
	if registered.byName == nil {
		registered.byName = map[string]error{}
	}
	if registered.byName[name] == nil {
		registered.names = append(registered.names, name)
	}
	registered.byName[name] = err
}

// registeredName returns the name of a registered error that err matches.
func registeredName(err error) string {
	registered.RLock()
	defer registered.RUnlock()
	for _, name := range registered.names {
		if errors.Is(err, registered.byName[name]) {
			return name
		}
	}
	return ""
}

func registeredError(name string) error {
	registered.RLock()
	defer registered.RUnlock()
	return registered.byName[name]
}
