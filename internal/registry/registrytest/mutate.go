package registrytest

import (
	"math/rand"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// Mutate makes one change to obj, except to its managedFields: it empties, fills or changes a value, or repeats or
// drops an item. It returns false if there is nothing to change.
func Mutate(obj runtime.Object, random *rand.Rand) bool {
	return mutate(random, reflect.ValueOf(obj).Elem())
}

func mutate(random *rand.Rand, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		var settable []reflect.Value
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Field(i).CanSet() && name != "ManagedFields" && name != "TypeMeta" {
				settable = append(settable, v.Field(i))
			}
		}
		for range 8 {
			if len(settable) > 0 && mutate(random, settable[random.Intn(len(settable))]) {
				return true
			}
		}
		return false
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
			return true
		}
		if random.Intn(4) == 0 {
			v.SetZero()
			return true
		}
		return mutate(random, v.Elem())
	case reflect.Slice:
		return mutateList(random, v)
	case reflect.Map:
		return mutateMap(random, v)
	case reflect.String:
		v.SetString([]string{"", "a", "b"}[random.Intn(3)])
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(random.Intn(3)))
	default:
		return false
	}
	return true
}

func mutateList(random *rand.Rand, v reflect.Value) bool {
	switch n := random.Intn(6); {
	case v.Type().Elem().Kind() == reflect.Uint8:
		return false
	case n == 0:
		v.SetZero()
	case n == 1:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case v.Len() == 0:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case n == 2:
		v.Set(reflect.Append(v, v.Index(0)))
	default:
		return mutate(random, v.Index(random.Intn(v.Len())))
	}
	return true
}

func mutateMap(random *rand.Rand, v reflect.Value) bool {
	switch random.Intn(5) {
	case 0:
		v.SetZero()
	case 1:
		v.Set(reflect.MakeMap(v.Type()))
	default:
		if v.Type().Key().Kind() != reflect.String {
			return false
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		key := reflect.ValueOf([]string{"a", "b", "c"}[random.Intn(3)]).Convert(v.Type().Key())
		item := reflect.New(v.Type().Elem()).Elem()
		if old := v.MapIndex(key); old.IsValid() {
			item.Set(old)
			mutate(random, item)
		}
		v.SetMapIndex(key, item)
	}
	return true
}
