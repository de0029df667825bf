package props

import (
	"strconv"
	"strings"

	"github.com/pingcap/go-ycsb/pkg/prop"
	"github.com/pingcap/go-ycsb/pkg/util"
)

// Keys describes how the keys of records are formed.
type Keys struct {
	Prefix  string
	Padding int
	Hashed  bool
}

// paddingMax bounds zeropadding.
const paddingMax = 100

// ReadKeys reads the properties that determine the keys of records.
func ReadKeys(r *Reader) Keys {
	return Keys{
		Prefix:  r.String(prop.KeyPrefix, prop.KeyPrefixDefault),
		Padding: int(r.Int(prop.ZeroPadding, prop.ZeroPaddingDefault, 0, paddingMax)),
		Hashed:  r.OneOf(prop.InsertOrder, prop.InsertOrderDefault, "hashed", "ordered") == "hashed",
	}
}

// Name returns the key of record n, the same as go-ycsb's.
func (k *Keys) Name(n int64) string {
	if k.Hashed {
		n = util.Hash64(n)
	}
	digits := strconv.FormatInt(n, 10)
	if pad := k.Padding - len(digits); pad > 0 {
		return k.Prefix + strings.Repeat("0", pad) + digits
	}
	return k.Prefix + digits
}

// FieldName returns the name of field i of a record.
func FieldName(i int) string { return "field" + strconv.Itoa(i) }
